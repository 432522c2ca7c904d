"""Which rows a worker keeps from one of its steps to the next that needs them: decided by the server, exactly.

A server knows the lookups of all workers some steps ahead. A row that one worker alone looks up, and that the same worker
alone looks up next, may stay there in between: it is neither pushed nor pulled, and no other worker can miss an update. Such a
pair of uses is a *link*; it takes a place in the worker's cache for as many steps as it spans. A cache with perfect foresight
takes the links that end first (Belady). A server that sees only some steps ahead takes links up to a length that fills
the cache: of the lengths of past links it knows how many links of each length are open at any time.

After BagPipe (Agarwal et al., SOSP 2023), where one cache server decides for all workers; here each server decides for its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]
_SHARED = -1
"""The user of a row that several workers look up in a step."""
_FORGET = 0.95
"""The weight of the past in the mean number of links of each length, per step."""


@dataclass(frozen=True, slots=True)
class _Use:
    """The rows that any worker looks up in a step, each once, and where the rows of each worker are among them."""

    rows: Ints
    users: Ints
    of_worker: list[Ints]


@dataclass(frozen=True, slots=True)
class Decision:
    """Of one worker's rows in a step."""

    has: NDArray[np.bool_]
    """It keeps them from an earlier step."""
    keeps: NDArray[np.bool_]
    """It keeps them when the step is done."""


class LeasePlanner:
    """One server's decisions. Call `add` for the lookups of every step, in order, and `plan` for the steps, in order."""

    def __init__(self, num_rows: int, num_workers: int, cache_rows: int, look_ahead: int) -> None:
        """`cache_rows`: rows of this server that each worker may keep. `look_ahead`: by how many steps `add` is ahead of `plan`."""
        self._num_workers, self._most = num_workers, cache_rows
        self._uses: deque[_Use] = deque()
        self._last_use = np.full(num_rows, -1, dtype=np.int64)
        self._next_step = np.zeros(0, dtype=np.int32)
        self._next_user = np.zeros(0, dtype=np.int16)
        self._dropped = self._added = self._planned = 0
        self._open = np.zeros((num_workers, look_ahead + 1))
        """Per worker and length: the mean number of links that begin in a step."""
        self.holder = np.full(num_rows, _SHARED, dtype=np.int16)
        """The worker that keeps each row at present."""
        self._num_held = np.zeros(num_workers, dtype=np.int64)

    def add(self, places: Sequence[Ints]) -> None:
        """The rows that each worker looks up in the next step, each once."""
        joined = np.concatenate(places)
        rows, inverse, counts = np.unique(joined, return_inverse=True, return_counts=True)
        ends = np.cumsum([len(one) for one in places])
        of_worker = np.split(inverse.reshape(-1), ends[:-1])
        users = np.full(len(rows), _SHARED, dtype=np.int16)
        for worker, own in enumerate(of_worker):
            users[own] = worker
        users[counts > 1] = _SHARED
        before = self._last_use[rows] - self._dropped
        is_known = before >= 0
        self._next_step[before[is_known]] = self._added
        self._next_user[before[is_known]] = users[is_known]
        self._last_use[rows] = self._dropped + len(self._next_step) + np.arange(len(rows))
        self._next_step = np.concatenate([self._next_step, np.full(len(rows), -1, dtype=np.int32)])
        self._next_user = np.concatenate([self._next_user, np.full(len(rows), _SHARED, dtype=np.int16)])
        self._uses.append(_Use(rows, users, of_worker))
        self._added += 1

    def plan(self) -> list[Decision]:
        """Of each worker, for the next step."""
        use = self._uses.popleft()
        next_step, next_user = (one[: len(use.rows)] for one in (self._next_step, self._next_user))
        links = (use.users != _SHARED) & (next_user == use.users)
        keeps = np.zeros(len(use.rows), dtype=bool)
        before = self.holder[use.rows]
        held = before != _SHARED
        self._num_held -= np.bincount(before[held], minlength=self._num_workers)
        for worker in range(self._num_workers):
            own = np.flatnonzero(links & (use.users == worker))
            own = own[self._chosen(worker, next_step[own] - self._planned)]
            keeps[own] = True
            self._num_held[worker] += len(own)
        self.holder[use.rows] = np.where(keeps, use.users, _SHARED)
        self._next_step, self._next_user = self._next_step[len(use.rows) :], self._next_user[len(use.rows) :]
        self._dropped += len(use.rows)
        self._planned += 1
        return [Decision(before[own] == worker, keeps[own]) for worker, own in enumerate(use.of_worker)]

    def held(self, worker: int) -> Ints:
        """The rows that a worker keeps, ascending."""
        return np.flatnonzero(self.holder == worker)

    def _chosen(self, worker: int, lengths: Ints) -> Ints:
        """Which of these links a worker keeps: the shortest, up to the length that fills its cache, and as many as fit now."""
        counts = np.bincount(lengths, minlength=self._open.shape[1])
        mean = self._open[worker]
        mean += (counts - mean) * (1 - _FORGET if mean.any() else 1.0)
        filled = np.cumsum(mean * np.arange(len(mean)))
        longest = int(np.searchsorted(filled, self._most, side="right"))
        order = np.argsort(lengths, kind="stable")
        fitting = int(np.searchsorted(lengths[order], longest, side="right"))
        return order[: min(fitting, self._most - int(self._num_held[worker]))]
