"""When another way of sending is tried, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.online.candidates import Candidates
from autotune.online.comm_controller import CommController, Patience, Switch
from autotune.online.known import Known
from autotune.online.learning import Memory
from autotune.online.meta_network import Guess, MetaNetwork
from autotune.online.model_sizes import ModelSizes
from profilers.step_stats import StepStats
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_simulated, observed, offered
from workloads.plan import Plan

PATIENCE = Patience()
CANDIDATES = offered()
RUNNING = CANDIDATES.plans[0]
KNOWN = Known(model=ModelSizes.of(GRAPH))


class Oracle:
    """Says what it was told to say of each plan, and is sure of it."""

    def __init__(self, worth: dict[int, float]) -> None:
        self._worth = worth
        self.num_asked = 0

    def guess(self, _window: Any, rows: Any) -> Guess:
        self.num_asked += 1
        mean = np.zeros(len(rows))
        for index, value in self._worth.items():
            mean[index] = value
        return Guess(mean=mean, spread=np.full(len(rows), 0.001))


def controller(worth: dict[int, float]) -> tuple[CommController, Oracle]:
    memory, oracle = Memory(MetaNetwork.cold()), Oracle(worth)
    memory.network = oracle  # type: ignore[assignment]
    memory.learn = memory.cases.append  # type: ignore[method-assign]
    return CommController(KNOWN, lambda _running: Candidates(plans=CANDIDATES.plans), memory), oracle


def steps(step_s: float, compute_s: float = 1.0) -> tuple[StepStats, ...]:
    return tuple(
        StepStats(
            rank=rank,
            step=0,
            samples=count,
            step_s=step_s,
            compute_s=compute_s,
            forward_s=compute_s / 3,
            backward_s=2 * compute_s / 3,
            wait_s=step_s - compute_s,
        )
        for rank, count in enumerate(SAMPLES)
    )


def run(found: CommController, plan: Plan, step_s: float, num_steps: int) -> Switch | None:
    """The first switch within so many like steps."""
    for number in range(num_steps):
        found.observe(plan, tuple(replace(stats, step=number) for stats in steps(step_s)))
        if (switch := found.propose()) is not None:
            return switch
    return None


def test_a_surely_better_way_is_tried_after_a_window() -> None:
    found, oracle = controller({3: 0.2})
    assert run(found, RUNNING, 2.0, PATIENCE.skip + PATIENCE.window - 1) is None
    assert oracle.num_asked == 0
    switch = run(found, RUNNING, 2.0, 1)
    assert switch is not None
    assert switch.plan == CANDIDATES.plans[3]
    assert switch.predicted_gain == pytest.approx(1 - np.exp(-0.2))


def test_what_is_not_worth_it_is_not_tried_and_not_asked_again() -> None:
    found, oracle = controller({3: 0.02})
    assert run(found, RUNNING, 2.0, 100) is None
    assert oracle.num_asked == 1


def test_a_way_that_is_slower_is_left_again_and_not_tried_twice() -> None:
    found, oracle = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    back = run(found, tried.plan, 2.2, PATIENCE.skip + PATIENCE.window)
    assert back is not None
    assert back.is_regret
    assert back.plan == RUNNING
    assert run(found, RUNNING, 2.0, 50) is None
    (case,) = found.memory.cases
    assert case.predicted == pytest.approx(0.2)
    assert case.measured == pytest.approx(np.log(2.0 / 2.2))
    assert oracle.num_asked == 1


def test_when_the_network_changes_it_may_be_tried_again() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    assert run(found, tried.plan, 2.2, 10) is not None
    assert run(found, RUNNING, 2.0, 10) is None
    again = run(found, RUNNING, 4.0, 10)
    assert again is not None
    assert again.plan == CANDIDATES.plans[3]


def test_a_way_that_is_faster_stays_and_teaches() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    assert run(found, tried.plan, 1.7, 30) is None
    assert found.memory.cases[0].measured == pytest.approx(np.log(2.0 / 1.7))


def test_while_ranks_compute_differently_nothing_is_judged() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    for number in range(10):
        found.observe(tried.plan, tuple(replace(stats, step=number) for stats in steps(3.0, compute_s=2.0)))
        assert found.propose() is None
    assert not found.memory.cases


def test_the_shipped_network_finds_a_better_way_on_a_slow_network() -> None:
    """One bucket behind computing, where parts could overlap it: simulated steps in, and out."""
    simulator = make_simulated(0.5e6)
    found = CommController(KNOWN, lambda _running: Candidates(plans=CANDIDATES.plans), Memory(MetaNetwork.shipped()))
    by_step = [observed(simulator, RUNNING, 1) for _ in range(PATIENCE.skip + PATIENCE.window)]
    switch = None
    for number, entries in enumerate(by_step):
        found.observe(RUNNING, tuple(replace(entry, step=number) for entry in entries))
        switch = switch or found.propose()
    best_s = min(simulator.step_s(plan) for plan in CANDIDATES.plans)
    chosen_s = simulator.step_s(switch.plan if switch is not None else RUNNING)
    assert chosen_s <= 1.1 * best_s
