"""How the tasks of a data-parallel plan are numbered: the number of a task gives its meaning.

Step by step. Within a step: the tasks of each rank, then the transfers, then the barrier at which all are completed. Of a
rank: data, forward op by op, the passes between (with gradient accumulation), backward op by op, then encode, decode and
update, one fusion buffer after another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autotune.simulate.engine import Run
from autotune.simulate.task_graph import Ints

DATA, FORWARD, BACKWARD, ENCODE, DECODE, UPDATE, SEND, BARRIER = range(8)
"""Kinds of tasks, for a timeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """What each task of a step is: its kind, rank (-1: all), and op or fusion buffer."""

    kind: Ints
    rank: Ints
    index: Ints
    step: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The sizes that determine the numbering."""

    num_ranks: int
    num_ops: int
    num_buffers: int
    num_steps: int
    crosses_steps: bool
    """Cross-step overlap: each fusion buffer is updated by itself, and the next step starts before all are completed."""
    coded: bool
    """Gradients are encoded and decoded."""
    decodes_early: bool = False
    """They are decoded as they arrive, not after the backward pass. With cross-step overlap they always are."""
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
        return passes + (2 * self.num_buffers if self.coded else 0) + (self.num_buffers if self.crosses_steps else 1)

    @property
    def per_step(self) -> int:
        return self.num_ranks * self.per_rank + self.num_buffers + 1

    def step_s(self, run: Run) -> float:
        """Seconds that one more step adds in steady state."""
        if self.num_steps == 1:
            return run.makespan_s
        settled, last = 1, self.num_steps - 1  # the first step starts with no transfer in flight
        # From backward to backward: what follows a backward overlaps with the next step, except after the last one.
        return (self._backward_end_s(run, last) - self._backward_end_s(run, settled)) / (last - settled)

    def _backward_end_s(self, run: Run, step: int) -> float:
        start = step * self.per_step
        ends = run.end_s[start : start + self.num_ranks * self.per_rank].reshape(self.num_ranks, self.per_rank)
        first = 1 + self.num_ops + self.num_between
        return float(ends[:, first : first + self.num_ops].max())

    def labels(self) -> Labels:
        """Of every task. Only timelines need them; a search, with thousands of plans a second, does not."""
        codes = self.num_buffers if self.coded else 0
        kind, rank, index, step = _labels(
            self.num_ranks,
            self.num_ops,
            self.num_between,
            self.num_buffers,
            codes,
            self.per_rank,
            self.num_steps * self.per_step,
        )
        return Labels(kind=kind, rank=rank, index=index, step=step)


@njit(cache=True)
def _labels(num_ranks, num_ops, num_between, num_buffers, codes, per_rank, num_tasks):
    per_step = num_ranks * per_rank + num_buffers + 1
    kind, rank = np.full(num_tasks, BARRIER), np.full(num_tasks, -1)
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
            # Before the backward pass that transfers overlap with, as forward is.
            for task in range(between, between + num_between):
                kind[task], index[task] = FORWARD, num_ops
            encode = between + num_between + num_ops
            decode, update = encode + codes, encode + 2 * codes
            for buffer in range(codes):
                kind[encode + buffer], index[encode + buffer] = ENCODE, buffer
                kind[decode + buffer], index[decode + buffer] = DECODE, buffer
            for place in range(own + per_rank - update):
                kind[update + place], index[update + place] = UPDATE, place
        sends = start + num_ranks * per_rank
        for buffer in range(num_buffers):
            kind[sends + buffer], index[sends + buffer] = SEND, buffer
    return kind, rank, index, step
