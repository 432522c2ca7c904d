"""What servers let workers keep: never too many rows, never a row that another worker needs, and nearly all that can be."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from autotune.runtime.embedding.leases import LeasePlanner
from tests.benchmarks.row_links import drawn_stream, kept_links, links, most_links


def random_stream(generator: random.Random, num_workers: int, num_steps: int, num_rows: int) -> list[list[np.ndarray]]:
    return [
        [
            np.array(sorted(generator.sample(range(num_rows), generator.randint(0, num_rows // 2))), dtype=np.int64)
            for _ in range(num_workers)
        ]
        for _ in range(num_steps)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_kept_row_is_needed_next_by_its_worker_alone(seed: int) -> None:
    generator = random.Random(seed)
    num_workers, num_rows, cache_rows, ahead = (
        generator.randint(1, 3),
        30,
        generator.randint(0, 8),
        generator.randint(2, 8),
    )
    stream = random_stream(generator, num_workers, 40, num_rows)
    planner = LeasePlanner(num_rows, num_workers, cache_rows, ahead)
    for places in stream[:ahead]:
        planner.add(places)
    holders: dict[int, int] = {}
    for step, of_workers in enumerate(stream):
        decisions = planner.plan()
        for worker, (rows, decision) in enumerate(zip(of_workers, decisions, strict=True)):
            for row, has, keeps in zip(rows.tolist(), decision.has, decision.keeps, strict=True):
                assert has == (holders.get(row) == worker)
                assert row not in holders or has
                assert not keeps or sum(row in other for other in of_workers) == 1
        for worker, (rows, decision) in enumerate(zip(of_workers, decisions, strict=True)):
            for row, keeps in zip(rows.tolist(), decision.keeps, strict=True):
                holders.pop(row, None)
                if keeps:
                    holders[row] = worker
        for worker in range(num_workers):
            assert sum(holder == worker for holder in holders.values()) <= cache_rows
        if step + ahead < len(stream):
            planner.add(stream[step + ahead])


def test_perfect_foresight_is_brute_force() -> None:
    generator = random.Random(0)
    for _ in range(50):
        given = [(begin, begin + generator.randint(1, 6)) for begin in (generator.randrange(8) for _ in range(9))]
        for cache_rows in (1, 2, 3):
            fits = [
                size
                for size in range(len(given) + 1)
                for chosen in combinations(given, size)
                if all(sum(begin <= step < end for begin, end in chosen) <= cache_rows for step in range(14))
            ]
            assert most_links(given, cache_rows) == max(fits)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_nearly_as_many_as_with_perfect_foresight(num_workers: int) -> None:
    stream = drawn_stream(num_workers, 120, tables=2, rows=2000, samples=200)
    found = links(stream)
    for share in (0.01, 0.05, 0.2):
        cache_rows = int(share * 4000)
        best = sum(most_links(one, cache_rows) for one in found)
        assert kept_links(stream, 4000, cache_rows, 64) >= 0.9 * best
