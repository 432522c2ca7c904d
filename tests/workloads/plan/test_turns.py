"""Whole micro-batches dealt to replicas: numbers as asked, evenly spread, orders that can run and hold what 1F1B holds."""

from __future__ import annotations

import random

import pytest

from autotune.workloads.plan.turns import replica_passes, turns
from autotune.workloads.stage_order import BACKWARD, FORWARD, INPUT, WEIGHT, stage_passes


def test_turns_are_in_proportion_and_spread():
    assert turns([1, 1, 1], 6) == (0, 1, 2, 0, 1, 2)
    assert turns([2, 1], 6) == (0, 0, 1, 0, 0, 1)
    assert turns([0, 3], 2) == (1, 1)
    taken = turns([171, 170, 170], 511)
    assert [taken.count(replica) for replica in range(3)] == [171, 170, 170]


def test_with_as_many_replicas_at_every_stage_each_pipeline_has_the_classic_order():
    takers = [turns([1, 1], 8)] * 3
    for schedule in ("gpipe", "1f1b"):
        found = replica_passes(schedule, [2, 2, 2], takers)
        for stage, passes in enumerate(stage_passes(schedule, 3, 4)):
            for replica in range(2):
                renamed = tuple((kind, 2 * number + replica) for kind, number in passes)
                assert found[stage][replica] == renamed


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_no_order_waits_for_itself(schedule):
    """Unlike numbers of replicas with unlike shares: every pass runs once its rank is there and what it needs is done."""
    draw = random.Random(0)
    for _ in range(60):
        sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
        count = draw.randint(max(sizes), 12)
        takers = []
        for size in sizes:
            numbers = [1] * size
            for _ in range(count - size):
                numbers[draw.randrange(size)] += 1
            takers.append(turns(numbers, count))
        runs(replica_passes(schedule, sizes, takers), len(sizes), count)


def runs(found, num_stages, count):
    places = {(stage, replica): 0 for stage, several in enumerate(found) for replica in range(len(several))}
    done, moved = set(), True
    while moved:
        moved = False
        for (stage, replica), place in places.items():
            passes = found[stage][replica]
            if place == len(passes):
                continue
            kind, number = passes[place]
            kind = BACKWARD if kind == INPUT else kind
            needs = {FORWARD: [(FORWARD, stage - 1)], WEIGHT: [(BACKWARD, stage)]}.get(
                kind, [(FORWARD, stage), (BACKWARD, stage + 1)]
            )
            if all((name, at, number) in done for name, at in needs if 0 <= at < num_stages):
                done.add((kind, stage, number))
                places[stage, replica] += 1
                moved = True
    assert all(place == len(found[stage][replica]) for (stage, replica), place in places.items())
    assert len([one for one in done if one[0] == FORWARD]) == num_stages * count
