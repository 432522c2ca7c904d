"""What caches of rows save: ours, and one with perfect foresight; simulated on drawn lookups, without values.

A link is a pair of uses of a row by the same worker alone, one after another. A worker that keeps the row in between saves
sending it and its gradient. With perfect foresight the most links that fit are those that end first.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from autotune.runtime.embedding.leases import LeasePlanner
from autotune.workloads.models.dlrm import zipf_ids

Stream = list[list[np.ndarray]]
"""Per step, of each worker: the rows that it looks up, ascending, each once."""


def drawn_stream(num_workers: int, num_steps: int, *, tables: int, rows: int, samples: int) -> Stream:
    """Zipf-distributed ids, the tables' rows one after another."""
    drawn = [
        table * rows + zipf_ids(rows, (num_steps, num_workers, samples), torch.Generator().manual_seed(table))
        for table in range(tables)
    ]
    return [
        [np.unique(np.concatenate([one[step, worker].numpy() for one in drawn])) for worker in range(num_workers)]
        for step in range(num_steps)
    ]


def links(stream: Stream) -> list[list[tuple[int, int]]]:
    """Of each worker: the steps at which its links begin and end."""
    found: list[list[tuple[int, int]]] = [[] for _ in stream[0]]
    last: dict[int, tuple[int, int]] = {}
    for step, of_workers in enumerate(stream):
        users: dict[int, int] = {}
        for worker, rows in enumerate(of_workers):
            for row in rows.tolist():
                users[row] = -1 if row in users else worker
        for row, user in users.items():
            before = last.get(row)
            if user >= 0 and before is not None and before[1] == user:
                found[user].append((before[0], step))
            last[row] = step, user
    return found


def most_links(given: Sequence[tuple[int, int]], cache_rows: int) -> int:
    """The largest number of links of which never more than `cache_rows` are open: of those open, the last to end is left out."""
    ends_by_begin: dict[int, list[int]] = defaultdict(list)
    for begin, end in given:
        ends_by_begin[begin].append(end)
    done, open_ends = 0, list[int]()
    for begin in sorted(ends_by_begin):
        first = next((place for place, end in enumerate(open_ends) if end > begin), len(open_ends))
        done += first
        del open_ends[:first]
        for end in ends_by_begin[begin]:
            insort(open_ends, end)
        del open_ends[cache_rows:]
    return done + len(open_ends)


def kept_links(stream: Stream, num_rows: int, cache_rows: int, look_ahead: int) -> int:
    """The number of links that one server lets workers keep, as `CachedTables` calls it."""
    planner = LeasePlanner(num_rows, len(stream[0]), cache_rows, look_ahead)
    for places in stream[:look_ahead]:
        planner.add(places)
    kept = 0
    for step in range(len(stream)):
        kept += sum(int(decision.keeps.sum()) for decision in planner.plan())
        # A step is decided one step before the rows of the step before it are sent.
        if step > 0 and step - 1 + look_ahead < len(stream):
            planner.add(stream[step - 1 + look_ahead])
    return kept
