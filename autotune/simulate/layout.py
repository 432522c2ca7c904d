"""How the tasks of a data-parallel plan are numbered, and so what each of them is.

Step by step; in a step rank by rank, then the transfers, then the moment at which all have landed. Of a rank: its data,
forward op by op, what lies between where gradients are accumulated, backward op by op, then encoding, decoding and updating unit by unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autotune.simulate.engine import Ints, Run

DATA, FORWARD, BACKWARD, ENCODE, DECODE, UPDATE, SEND, MEET = range(8)
"""What a task is, for whoever makes a timeline of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """What each task of a step is: its kind, rank (-1: all), and op or unit."""

    kind: Ints
    rank: Ints
    index: Ints
    step: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The numbers that decide on the order."""

    num_ranks: int
    num_ops: int
    num_units: int
    num_steps: int
    crosses: bool
    """Units are updated one by one, and the next step begins before all have landed."""
    coded: bool
    """Gradients are encoded and decoded."""
    accumulates: bool = False
    """A step has more than one pass."""

    @property
    def num_between(self) -> int:
        """Tasks of a rank between the forward ops of its first pass and the backward ops of its last."""
        return int(self.accumulates)

    @property
    def per_rank(self) -> int:
        """Tasks of a rank in a step."""
        passes = 1 + 2 * self.num_ops + self.num_between
        return passes + (2 * self.num_units if self.coded else 0) + (self.num_units if self.crosses else 1)

    @property
    def per_step(self) -> int:
        return self.num_ranks * self.per_rank + self.num_units + 1

    def step_s(self, run: Run) -> float:
        """The time a step adds, once steps follow each other."""
        if self.num_steps == 1:
            return run.makespan_s
        settled, last = 1, self.num_steps - 1  # the first step starts with nothing under way
        # From backward pass to backward pass: what follows it overlaps with the next step, and after the last with nothing.
        return (self._backward_end_s(run, last) - self._backward_end_s(run, settled)) / (last - settled)

    def _backward_end_s(self, run: Run, step: int) -> float:
        start = step * self.per_step
        ends = run.end_s[start : start + self.num_ranks * self.per_rank].reshape(self.num_ranks, self.per_rank)
        first = 1 + self.num_ops + self.num_between
        return float(ends[:, first : first + self.num_ops].max())

    def labels(self) -> Labels:
        """Of every task. A timeline asks for them; a search, thousands of times a second, does not."""
        codes = self.num_units if self.coded else 0
        kind, rank, index, step = _labels(
            self.num_ranks,
            self.num_ops,
            self.num_between,
            self.num_units,
            codes,
            self.per_rank,
            self.num_steps * self.per_step,
        )
        return Labels(kind=kind, rank=rank, index=index, step=step)


@njit(cache=True)
def _labels(num_ranks, num_ops, num_between, num_units, codes, per_rank, num_tasks):
    per_step = num_ranks * per_rank + num_units + 1
    kind, rank = np.full(num_tasks, MEET), np.full(num_tasks, -1)
    index, step = np.zeros(num_tasks, np.int64), np.arange(num_tasks) // per_step
    for start in range(0, num_tasks, per_step):
        for owner in range(num_ranks):
            own = start + owner * per_rank
            rank[own : own + per_rank], kind[own] = owner, DATA
            for op in range(num_ops):
                forward, backward = own + 1 + op, own + 2 * num_ops + num_between - op
                kind[forward], index[forward] = FORWARD, op
                kind[backward], index[backward] = BACKWARD, op
            between = own + 1 + num_ops
            # Like forward, it comes before the backward pass that exchanges overlap with.
            for task in range(between, between + num_between):
                kind[task], index[task] = FORWARD, num_ops
            encode = between + num_between + num_ops
            decode, update = encode + codes, encode + 2 * codes
            for unit in range(codes):
                kind[encode + unit], index[encode + unit] = ENCODE, unit
                kind[decode + unit], index[decode + unit] = DECODE, unit
            for place in range(own + per_rank - update):
                kind[update + place], index[update + place] = UPDATE, place
        sends = start + num_ranks * per_rank
        for unit in range(num_units):
            kind[sends + unit], index[sends + unit] = SEND, unit
    return kind, rank, index, step
