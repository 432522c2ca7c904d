"""A lower bound on the step time of every lossless data-parallel plan on a cluster, whichever of its devices the plan uses.

It is the largest of three bounds, each of which holds for every subset of the devices:

- Work over the total speed of all devices, with the best fractional split. A subset has no more speed.
- The least time in which some hosts can do it together. Every host that takes part must compute its samples, and send and
  receive the bytes that *any* algorithm must move: the gradient of every parameter once, or for a Linear layer the rows that
  it is a product of, whichever is less. A host that is left out moves nothing. One host alone moves nothing either, and takes
  the batch over its own speed; so the bound is never above that.
- The time of one sample on the fastest device.

In a time T host h can do between least_h and most_h samples, and some set of hosts with Σ least ≤ batch ≤ Σ most must
exist. Of up to 10 hosts all sets are looked at. Of more, a host may be taken in part (a fractional knapsack), which only
lowers the bound. Plans with pipeline stages exchange activations instead of gradients and are not bounded by this.

Plans that place ops apart (groups of ops) have a bound of their own, the larger of two:

- The least time in which all devices together can do the work, each op on the devices that are best at it: the linear program
  min T with Σ_k x_ok = batch for every op o and Σ_o c_ok·x_ok ≤ n_k·T for every kind k of device, of which there are n_k.
  c_ok is the least time per sample of the op on such a device, whatever the number of samples.
- The time of one sample that passes every op on the device that is best at it.

Messages are not counted there: a plan on one device sends none, and which plans on several send least is a hard problem. So that
bound is far below the best plan where links are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from autotune.results.store.record import Limit
from autotune.simulate.cost_tables import Costs, LikeRanks, Points
from autotune.simulate.factors import ELEMENT_BYTES, factor_bytes
from autotune.simulate.roofline import compute_s
from autotune.simulate.task_graph import Floats
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.topology import split_device

_MANY = 10**6
_HALVINGS = 60
_MOST_HOSTS = 10
"""Of which every set is looked at."""
_NEARLY = 1 - 1e-9
_TINY = 1e-300
_SLACK = 1 - 1e-7
"""The solver's tolerance must not raise the bound."""


def stated_sample_s(graph: OpGraph, cluster: Cluster) -> list[float]:
    """Least time per sample of each rank's device as the cluster file states it: fixed costs spread over many samples."""
    return [compute_s(graph, device, _MANY) / _MANY for device in cluster.devices]


def least_sample_s(costs: Costs, global_batch: int) -> list[float]:
    """Least time per sample of each rank, whatever its number of samples.

    Times are lines between measured points, and one line before and after them: the time per sample of each piece is least at
    one of its ends.
    """
    return [float(value) for value in _least(costs, global_batch, lambda table: table.sum(axis=1))]


def least_op_sample_s(costs: Costs, global_batch: int) -> Floats:
    """Likewise of every op on each rank, for plans that place ops apart."""
    return _least(costs, global_batch, lambda table: table)


def _least(costs: Costs, global_batch: int, of: Callable[[Floats], Floats]) -> Floats:
    """Least time per sample, forward and backward."""
    ends = {2.0**power for power in range(max(global_batch, 1).bit_length())} | {1.0, float(global_batch), float(_MANY)}
    for points in _all_points(costs):
        ends |= {float(count) for count in np.unique(points.samples) if 0 < count <= _MANY}
    size = len(costs.cluster.devices)
    tables = (of(sum(costs.passes(np.full(size, count)), np.float64(0))) / count for count in sorted(ends))  # type: ignore[arg-type]
    found: Floats = np.minimum.reduce(list(tables))
    return found


def _all_points(costs: Costs) -> list[Points]:
    tables = [costs.forward.points, costs.backward.points, costs.whole.points if costs.whole is not None else None]
    return [points for points in tables if points is not None]


def step_limit(sample_s: Sequence[float], cluster: Cluster, graph: OpGraph, *, global_batch: int) -> Limit:
    """The bound for ranks that take `sample_s` per sample, joined by this cluster's links."""
    together_s = global_batch / sum(1 / seconds for seconds in sample_s)
    return Limit(
        compute_s=together_s,
        network_s=_network_s(sample_s, cluster, graph, global_batch, at_least_s=together_s),
        path_s=min(sample_s),
    )


def _network_s(
    sample_s: Sequence[float], cluster: Cluster, graph: OpGraph, global_batch: int, *, at_least_s: float
) -> float:
    """The least time for which hosts and a split exist: with more time, the most samples of a host grow and the least shrink."""
    links = [host.link for host in cluster.hosts]
    if len(links) < 2 or all(link is None for link in links):
        return 0.0
    up, down = _host_speeds(cluster)
    speed = np.bincount(cluster.host_of_rank, weights=[1 / seconds for seconds in sample_s], minlength=len(links))
    samples_in = _samples_in(graph, global_batch)
    alone_s, sets = float(global_batch / speed.max()), _all_sets(len(links))

    def is_enough(seconds: float) -> bool:
        most = np.minimum(np.minimum(seconds * speed, samples_in(seconds * up)), global_batch)
        least = np.maximum(global_batch - samples_in(seconds * down), 0.0)
        return _can_share(least, most, global_batch, sets)

    if is_enough(at_least_s):
        return at_least_s
    low, high = at_least_s, alone_s
    for _ in range(_HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _host_speeds(cluster: Cluster) -> tuple[Floats, Floats]:
    """All that can leave and enter each host at once: over its NICs, and over cables between it and others."""
    number_of = {host.name: number for number, host in enumerate(cluster.hosts)}
    up, down = (
        np.array([np.inf if host.link is None else getattr(host.link, side) for host in cluster.hosts])
        for side in ("up_bytes_per_s", "down_bytes_per_s")
    )
    for pair in cluster.pairs:
        first, second = (number_of.get(end, number_of.get(split_device(end)[0], -1)) for end in pair.between)
        if pair.is_direct and first != second:
            up[first] += pair.link.up_bytes_per_s
            down[second] += pair.link.up_bytes_per_s
            up[second] += pair.link.down_bytes_per_s
            down[first] += pair.link.down_bytes_per_s
    return up, down


def _all_sets(num_hosts: int) -> Floats | None:
    """Every set of hosts, one per row; None where they are too many to look at."""
    if num_hosts > _MOST_HOSTS:
        return None
    return np.array(list(product((0.0, 1.0), repeat=num_hosts))[1:])


def _can_share(least: Floats, most: Floats, total: int, sets: Floats | None) -> bool:
    """Whether some hosts can divide the batch: their least samples sum to no more than it, their most to no less."""
    able = (most > 0) & (least <= most)
    if sets is not None:
        chosen = sets[(sets[:, ~able] == 0).all(axis=1)]
        return bool(((chosen @ least <= total) & (chosen @ most >= total * _NEARLY)).any())
    order = np.argsort(-most[able] / np.maximum(least[able], _TINY), kind="stable")
    weights, values = least[able][order], most[able][order]
    before = np.cumsum(weights) - weights
    taken = np.where(weights > 0, np.clip((total - before) / np.maximum(weights, _TINY), 0.0, 1.0), 1.0)
    return bool((taken * values).sum() >= total * _NEARLY)


def _samples_in(graph: OpGraph, global_batch: int) -> Callable[[Floats], Floats]:
    """The most samples whose gradients fit into so many bytes; for received bytes, those of all other hosts."""
    layers = [op for op in graph.ops if op.factor_shapes]
    whole = np.array([op.factor_shapes[0][0] * op.factor_shapes[0][1] * ELEMENT_BYTES for op in layers], np.float64)
    per_sample = np.array([factor_bytes(op, [1])[0] for op in layers], np.float64)
    plain_bytes = graph.param_bytes - whole.sum()
    bends = np.unique(np.clip(np.append(whole / per_sample, [0.0, global_batch]), 0.0, global_batch))
    told_bytes = plain_bytes + np.minimum(whole, bends[:, None] * per_sample).sum(axis=1)

    def samples_in(num_bytes: Floats) -> Floats:
        return np.where(num_bytes < plain_bytes, 0.0, np.interp(num_bytes, told_bytes, bends))

    return samples_in


def placed_limit(costs: Costs, global_batch: int) -> Limit:
    """The bound for this batch on these devices."""
    kinds = np.array(LikeRanks(costs).kind_of_rank)
    first = [int(np.flatnonzero(kinds == kind)[0]) for kind in range(kinds.max() + 1)]
    sample_s = least_op_sample_s(costs.part(first), global_batch)
    counts = np.bincount(kinds).astype(np.float64)
    return Limit(
        compute_s=_shared_s(sample_s, counts) * global_batch * _SLACK,
        network_s=0.0,
        path_s=float(sample_s.min(axis=0).sum()),
    )


def _shared_s(sample_s: Floats, counts: Floats) -> float:
    """Least time for one sample, shared by all devices. `sample_s`: of every kind of device and op."""
    num_kinds, num_ops = sample_s.shape
    if num_kinds == 1:
        return float(sample_s.sum() / counts[0])
    scale = float(sample_s.max()) or 1.0
    columns = np.arange(num_kinds * num_ops)
    kind, op = np.divmod(columns, num_ops)
    rows = np.concatenate([kind, np.arange(num_kinds)])
    values = np.concatenate([sample_s.ravel() / scale, -counts])
    at_most = coo_matrix((values, (rows, np.concatenate([columns, np.full(num_kinds, len(columns))]))))
    equal = coo_matrix((np.ones(len(columns)), (op, columns)), shape=(num_ops, len(columns) + 1))
    found = linprog(
        np.append(np.zeros(len(columns)), 1.0),
        A_ub=at_most.tocsr(),
        b_ub=np.zeros(num_kinds),
        A_eq=equal.tocsr(),
        b_eq=np.ones(num_ops),
    )
    assert found.success, "all work fits on one device"
    return float(found.fun) * scale
