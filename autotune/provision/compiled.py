"""The compiled functions of provisioning: times of stages, the interval programme, the units of one assignment, search by labels.

All of them take the same plain arrays, rows layers and columns types, and the rule of `stage_s`, which is the model's definition. They
stand in one module because numba keeps compiled functions by the file of the caller.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

SAME = 1e-12
"""Two times nearer than this are one: sums of the same decimal numbers in another order differ by less."""
FOUND, NONE, TOO_MANY = 0, 1, 2
"""Outcomes of `labels`."""


@njit(cache=True)
def stage_s(compute, transfer, alpha, beta, units):
    """Seconds per example of a stage on `units` units of its type."""
    return max(compute * (1 - alpha + alpha / units), transfer * (1 - beta + beta / units))


@njit(cache=True)
def units_for(compute, transfer, alpha, beta, cap, tau):
    """The fewest units with which a stage takes at most `tau`; 0: even `cap` are too few.

    The quotient is only a guess: what decides is `stage_s` itself, so that a stage meets its own time exactly.
    """
    most = tau * (1 + SAME)
    if cap < 1 or stage_s(compute, transfer, alpha, beta, cap) > most:
        return 0.0
    guess = 1.0
    if compute * alpha > 0:
        room = most - compute * (1 - alpha)
        guess = compute * alpha / room if room > 0 else cap
    if transfer * beta > 0:
        room = most - transfer * (1 - beta)
        guess = max(guess, transfer * beta / room if room > 0 else cap)
    units = min(max(np.ceil(guess), 1.0), cap)
    while units > 1 and stage_s(compute, transfer, alpha, beta, units - 1) <= most:
        units -= 1
    while units < cap and stage_s(compute, transfer, alpha, beta, units) > most:
        units += 1
    return units


@njit(cache=True)
def completions(problem, low, high, extra):
    """The interval programme, from the last layer to the first.

    `best[i, t]`: the least weight of layers i onwards if a stage of type t begins at i; `ends[i, t]`: where that stage ends (exclusive). A stage
    on k units weighs k · (price · max(low, its time) + extra), k being the fewest units for `high`. For stage times in (low, high] the sum
    is a lower bound of price x slowest stage, since k · time grows with k; with low = high it is the exact price x time.
    """
    compute_s, transfer_s, alpha, beta, price, cap = problem
    layers, types = compute_s.shape
    best = np.full((layers + 1, types), np.inf)
    ends = np.zeros((layers, types), np.int64)
    other = np.zeros((layers + 1, types))
    for first in range(layers - 1, -1, -1):
        for kind in range(types):
            compute = 0.0
            for last in range(first, layers):
                compute += compute_s[last, kind]
                if compute == np.inf or stage_s(compute, 0.0, alpha[kind], 0.0, max(cap[kind], 1.0)) > high * (
                    1 + SAME
                ):
                    break
                transfer, rest = transfer_s[last, kind], other[last + 1, kind]
                if transfer == np.inf or rest == np.inf:
                    continue
                units = units_for(compute, transfer, alpha[kind], beta[kind], cap[kind], high)
                if units == 0:
                    continue
                time = max(low, stage_s(compute, transfer, alpha[kind], beta[kind], units))
                weight = units * (price[kind] * time + extra[kind]) + rest
                if weight < best[first, kind]:
                    best[first, kind] = weight
                    ends[first, kind] = last + 1
        least, second, at = np.inf, np.inf, -1
        for kind in range(types):
            if best[first, kind] < least:
                least, second, at = best[first, kind], least, kind
            elif best[first, kind] < second:
                second = best[first, kind]
        for kind in range(types):
            other[first, kind] = second if kind == at else least
    return best, ends, other


@njit(cache=True)
def follow(best, ends, assignment):
    """Write the best assignment of `completions`, and answer its weight."""
    layers, types = ends.shape
    first, before, total = 0, -1, np.inf
    while first < layers:
        kind = -1
        for other in range(types):
            if other != before and (kind < 0 or best[first, other] < best[first, kind]):
                kind = other
        if kind < 0 or best[first, kind] == np.inf:
            return np.inf
        total = best[first, kind] if first == 0 else total
        assignment[first : ends[first, kind]] = kind
        first, before = ends[first, kind], kind
    return total


@njit(cache=True)
def stages_of(problem, assignment, kinds, compute, transfer):
    """The stages of an assignment: their type, compute and transfer; answers how many."""
    compute_s, transfer_s = problem[0], problem[1]
    count = 0
    for layer in range(len(assignment)):
        kind = assignment[layer]
        if layer == 0 or kind != assignment[layer - 1]:
            kinds[count], compute[count] = kind, 0.0
            count += 1
        compute[count - 1] += compute_s[layer, kind]
        transfer[count - 1] = transfer_s[layer, kind]
    return count


@njit(cache=True)
def best_units(problem, limit, assignment, longest, most_cost, most_steps, units_out):
    """The units of an assignment's stages that cost least with stages of at most `longest`; (price x time, slowest stage).

    Downwards over the times that matter: the slowest stages get a unit more, until no units are left or the lower bound Σ price · k · time(k),
    which grows with k, reaches the best. With a finite `most_cost`, the fastest that costs at most this instead.
    """
    alpha, beta, price, cap = problem[2:]
    layers = len(assignment)
    kinds = np.zeros(layers, np.int64)
    compute, transfer = np.zeros(layers), np.zeros(layers)
    count = stages_of(problem, assignment, kinds, compute, transfer)
    units, time, used = np.ones(layers), np.zeros(layers), np.zeros(len(price))
    found, slowest, tau = np.inf, np.inf, longest
    for _ in range(most_steps):
        used[:] = 0
        rate, bound, slow = 0.0, 0.0, 0.0
        for at in range(count):
            kind = kinds[at]
            units[at] = units_for(compute[at], transfer[at], alpha[kind], beta[kind], cap[kind], tau)
            used[kind] += units[at]
            if units[at] == 0 or used[kind] > limit[kind]:
                return found, slowest
            time[at] = stage_s(compute[at], transfer[at], alpha[kind], beta[kind], units[at])
            rate += price[kind] * units[at]
            bound += price[kind] * units[at] * time[at]
            slow = max(slow, time[at])
        if most_cost == np.inf and found < np.inf and bound >= found * (1 - 1e-10):
            return found, slowest
        if bound > most_cost * (1 + SAME):
            return found, slowest
        better = rate * slow < found if most_cost == np.inf else rate * slow <= most_cost * (1 + SAME)
        if better:
            found, slowest = rate * slow, slow
            units_out[:count] = units[:count]
        tau = slow * (1 - 4 * SAME)
    return found, slowest


@njit(cache=True)
def labels(problem, limit, low, high, extra, best_other, cutoff, most, assignment):
    """The least weight (as in `completions`, without `extra`) of an assignment within the limits, by best-first search over labels.

    A label is a beginning of the model, cut into stages, with its weight and its units of each type. It is completed by the bound
    `best_other` of the relaxation in which a unit of a type costs `extra` and limits are free, and dropped if another of the same layer and
    type weighs and uses no more. The first complete label is the best. Outcome, weight, number of labels.
    """
    compute_s, transfer_s, alpha, beta, price, cap = problem
    layers, types = compute_s.shape
    free = 0.0
    for kind in range(types):
        if limit[kind] < np.inf:
            free += extra[kind] * limit[kind]
    weight_of, priced_of = np.zeros(most), np.zeros(most)
    used_of = np.zeros((most, types))
    at_of, kind_of, parent_of = np.zeros(most, np.int64), np.zeros(most, np.int64), np.full(most, -1, np.int64)
    settled = np.full((layers + 1, types + 1), -1, np.int64)
    following = np.full(most, -1, np.int64)
    kind_of[0] = types
    count = 1
    queue = [(0.0, 0)]
    while len(queue) > 0:
        _, label = heapq.heappop(queue)
        at, before = at_of[label], kind_of[label]
        if at == layers:
            weight, place = weight_of[label], label
            while parent_of[place] >= 0:
                assignment[at_of[parent_of[place]] : at_of[place]] = kind_of[place]
                place = parent_of[place]
            return FOUND, weight, count
        if _dominated(label, settled[at, before], following, weight_of, used_of, limit):
            continue
        following[label] = settled[at, before]
        settled[at, before] = label
        for kind in range(types):
            if kind == before:
                continue
            compute = 0.0
            for last in range(at, layers):
                compute += compute_s[last, kind]
                if compute == np.inf or stage_s(compute, 0.0, alpha[kind], 0.0, max(cap[kind], 1.0)) > high * (
                    1 + SAME
                ):
                    break
                transfer, rest = transfer_s[last, kind], best_other[last + 1, kind]
                if transfer == np.inf or rest == np.inf:
                    continue
                units = units_for(compute, transfer, alpha[kind], beta[kind], cap[kind], high)
                if units == 0 or used_of[label, kind] + units > limit[kind]:
                    continue
                time = max(low, stage_s(compute, transfer, alpha[kind], beta[kind], units))
                priced = priced_of[label] + units * (price[kind] * time + extra[kind])
                if priced + rest - free >= cutoff:
                    continue
                if count == most:
                    return TOO_MANY, np.inf, count
                weight_of[count] = weight_of[label] + units * price[kind] * time
                priced_of[count] = priced
                used_of[count] = used_of[label]
                used_of[count, kind] += units
                at_of[count], kind_of[count], parent_of[count] = last + 1, kind, label
                bound = weight_of[count] if last + 1 == layers else max(priced + rest - free, weight_of[label])
                if bound < cutoff:
                    heapq.heappush(queue, (bound, count))
                    count += 1
    return NONE, np.inf, count


@njit(cache=True)
def _dominated(label, other, following, weight_of, used_of, limit):
    while other >= 0:
        if weight_of[other] <= weight_of[label]:
            within = True
            for kind in range(len(limit)):
                if limit[kind] < np.inf and used_of[other, kind] > used_of[label, kind]:
                    within = False
                    break
            if within:
                return True
        other = following[other]
    return False
