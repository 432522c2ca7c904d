"""When another way of sending is tried, and when it is taken back."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest

from autotune.online.candidates import Candidates
from autotune.online.comm_controller import CommController, Patience, Switch
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkView, Sight
from autotune.online.link_state import links_of, with_links
from autotune.online.meta_network import Guess, MetaNetwork
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Known
from autotune.online.window import window
from autotune.profilers.step_stats import Part, PartSums, StepStats
from autotune.results.store.decision import LOOK, REGRET
from autotune.simulate.collectives import plan_shares
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_simulated, observed, offered

PATIENCE = Patience()
NUMBERS = count()
"""Of steps, all of them different."""
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
    for _ in range(num_steps):
        number = next(NUMBERS)
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
    assert back.kind == REGRET
    assert back.plan == RUNNING
    assert run(found, RUNNING, 2.0, 50) is None
    (case,) = found.memory.cases
    assert case.predicted == pytest.approx(0.2)
    assert case.measured == pytest.approx(np.log(2.0 / 2.2))
    assert oracle.num_asked == 2  # there might have been another


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


def test_an_answer_that_takes_its_time_is_taken_up_later_and_only_for_the_plan_it_was_asked_for() -> None:
    """Samples move while it is thought about: it is asked again for the split that holds then."""
    waiting: list[tuple[Future[Any], Any]] = []

    def thinks(work: Any) -> Future[Any]:
        waiting.append((Future(), work))
        return waiting[-1][0]

    memory, oracle = Memory(MetaNetwork.cold()), Oracle({3: 0.2})
    memory.network = oracle  # type: ignore[assignment]

    def offers(running: Plan) -> Candidates:
        return Candidates(plans=tuple(replace(plan, batch=running.batch) for plan in CANDIDATES.plans))

    found = CommController(KNOWN, offers, memory, thinks=thinks)
    assert run(found, RUNNING, 2.0, 20) is None
    moved = replace(RUNNING, batch=BatchPlan(samples=(5, 3, 2, 2)))
    assert run(found, moved, 2.0, 3) is None
    done, work = waiting.pop()
    done.set_result(work())
    assert run(found, moved, 2.0, 10) is None
    done, work = waiting.pop()
    done.set_result(work())
    switch = run(found, moved, 2.0, 1)
    assert switch is not None
    assert switch.plan == replace(CANDIDATES.plans[3], batch=moved.batch)
    assert oracle.num_asked == 2


LOOKING = load_cluster("mixed4")


def looking(worth: dict[int, float], look_bytes: int = 0) -> CommController:
    """One that may look at the links, and knows what plans are worth."""
    memory, oracle = Memory(MetaNetwork.cold()), Oracle(worth)
    memory.network = oracle  # type: ignore[assignment]

    def offers(running: Plan) -> Candidates:
        return Candidates(plans=tuple(dict.fromkeys([*CANDIDATES.plans, running])))

    return CommController(KNOWN, offers, memory, links=LinkView(LOOKING, look_bytes=look_bytes))


def received(*speeds: float) -> list[list[float]]:
    """What hosts with such links receive from the first, second and third before them."""
    return [[min(speeds[(host - back) % 4], speed) for back in (1, 2, 3)] for host, speed in enumerate(speeds)]


def test_links_are_looked_at_before_it_is_asked_again_and_the_one_that_changed_is_named() -> None:
    found = looking({})
    assert run(found, RUNNING, 2.0, 20) is None  # nothing has changed yet: nothing to look at
    look = run(found, RUNNING, 3.0, 20)
    assert look is not None
    assert (look.kind, look.switches, look.plan) == (LOOK, False, RUNNING)
    sight = found.found(received(125e6, 25e6, 125e6, 125e6))
    assert sight == Sight(what="host1's link carries 0.2 times what it did", ranks=(1,))
    assert run(found, RUNNING, 3.0, 50) is None


def test_links_are_not_looked_at_where_a_look_is_far_more_than_training_sends() -> None:
    """A look of 1 MB: worth it where a step sends 200 kB, not where it sends 20."""
    for num_bytes, looks in ((200e3, True), (20e3, False)):
        found = looking({}, look_bytes=1_000_000)
        sent = PartSums.of([Part(num_bytes=num_bytes, ready_s=0.0, posted_s=0.0, end_s=0.1)])
        switches = []
        for number in range(40):
            seen = steps(2.0 if number < 20 else 3.0)
            found.observe(RUNNING, tuple(replace(stats, step=number, parts=sent) for stats in seen))
            switches.append(found.propose())
        assert any(switch is not None and switch.kind == LOOK for switch in switches) == looks


def test_a_network_that_swings_is_looked_at_less_and_less() -> None:
    found, looks = looking({}), []
    for number in range(300):
        step_s = 3.0 if number // 7 % 2 else 2.0
        found.observe(RUNNING, tuple(replace(stats, step=number) for stats in steps(step_s)))
        if (switch := found.propose()) is not None and switch.kind == LOOK:
            looks.append(number)
            found.found(received(125e6, 125e6, 125e6, 125e6))
    assert 3 <= len(looks) <= 6
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert gaps == sorted(gaps)


def test_shards_are_offered_with_the_owners_that_the_links_call_for() -> None:
    shards = next(index for index, plan in enumerate(CANDIDATES.plans) if plan.comm.collective == "shards")
    found = looking({shards: 0.2})
    found._asked = window(steps(9.0), RUNNING, KNOWN)
    look = run(found, RUNNING, 3.0, 20)
    assert look is not None
    found.found(received(125e6, 25e6, 125e6, 125e6))
    switch = run(found, RUNNING, 3.0, PATIENCE.window)
    assert switch is not None
    assert switch.switches
    assert switch.plan.comm.shares[1] == 0.0
    assert sum(switch.plan.comm.shares) == 1.0
    assert replace(switch.plan, comm=replace(switch.plan.comm, shares=())) == CANDIDATES.plans[shards]


def test_shards_that_run_are_owned_by_others_as_soon_as_links_are_known() -> None:
    """Half of what is sent over the dropped link need not be: 16 MB of 32 at 25 MB/s, of a step of 3 s."""
    shards = replace(RUNNING, comm=CommPlan(collective="shards"))
    found = looking({})
    sent = PartSums.of([Part(num_bytes=32e6, ready_s=0.0, posted_s=0.0, end_s=1.0)])
    for number in range(10):
        found.observe(shards, tuple(replace(stats, step=number, parts=sent) for stats in steps(1.5)))
        assert found.propose() is None
    for number in range(10, 10 + PATIENCE.steps):
        found.observe(shards, tuple(replace(stats, step=number, parts=sent) for stats in steps(3.0)))
    look = found.propose()
    assert look is not None
    found.found(received(125e6, 25e6, 125e6, 125e6))
    switch = found.propose()
    assert switch is not None
    assert switch.plan.comm.shares[1] == 0.0
    assert switch.predicted_gain == pytest.approx(16 / 25 / 3, rel=0.01)
    assert switch.ranks == (1,)
    back = run(found, switch.plan, 3.2, 10)
    assert back is not None
    assert (back.kind, back.plan) == (REGRET, shards)


def test_the_rough_guess_knows_what_other_owners_are_worth() -> None:
    """One host of four at a fifth: shards owned alike put 1.5 times as many bytes on it as shards that spare it."""
    stated = LOOKING
    now = with_links(stated, links_of(received(125e6, 25e6, 125e6, 125e6)))
    shards = CommPlan(collective="shards")
    known = KNOWN.on_links(now, stated, shards)
    spared = replace(shards, shares=plan_shares(now))
    assert known.collective_gain(CommPlan()) == 1.0
    assert known.collective_gain(spared) / known.collective_gain(shards) == pytest.approx(1.5, rel=0.01)


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
