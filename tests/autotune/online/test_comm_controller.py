"""When another communication configuration is tried, and when it is rolled back."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest

from autotune.online.candidates import Candidates
from autotune.online.comm_controller import CommController, Switch, SwitchThresholds
from autotune.online.learning import Memory
from autotune.online.link_estimate import Finding, LinkEstimate
from autotune.online.link_state import links_of, with_links
from autotune.online.meta_network import GainEstimate, MetaNetwork
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Priors
from autotune.online.window import window
from autotune.profilers.step_stats import Part, PartSums, StepStats
from autotune.results.store.decision import LOOK, REGRET
from autotune.simulate.collectives import plan_shares
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_candidates, make_simulated, observed

THRESHOLDS = SwitchThresholds()
NUMBERS = count()
"""Unique step numbers."""
CANDIDATES = make_candidates()
RUNNING = CANDIDATES.plans[0]
PRIORS = Priors(model=ModelSizes.of(GRAPH))


class Oracle:
    """Predicts given gains, with a small spread."""

    def __init__(self, gains: dict[int, float]) -> None:
        self._gains = gains
        self.num_calls = 0

    def predict(self, _window: Any, rows: Any) -> GainEstimate:
        self.num_calls += 1
        mean = np.zeros(len(rows))
        for index, value in self._gains.items():
            mean[index] = value
        return GainEstimate(mean=mean, spread=np.full(len(rows), 0.001))


def controller(gains: dict[int, float]) -> tuple[CommController, Oracle]:
    memory, oracle = Memory(MetaNetwork.cold()), Oracle(gains)
    memory.network = oracle  # type: ignore[assignment]
    memory.learn = memory.cases.append  # type: ignore[method-assign]
    return CommController(PRIORS, lambda _running: Candidates(plans=CANDIDATES.plans), memory), oracle


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
    """The first switch within this many equal steps."""
    for _ in range(num_steps):
        number = next(NUMBERS)
        found.observe(plan, tuple(replace(stats, step=number) for stats in steps(step_s)))
        if (switch := found.propose()) is not None:
            return switch
    return None


def test_a_better_configuration_is_tried_after_a_window() -> None:
    found, oracle = controller({3: 0.2})
    assert run(found, RUNNING, 2.0, THRESHOLDS.skip + THRESHOLDS.window - 1) is None
    assert oracle.num_calls == 0
    switch = run(found, RUNNING, 2.0, 1)
    assert switch is not None
    assert switch.plan == CANDIDATES.plans[3]
    assert switch.predicted_gain == pytest.approx(1 - np.exp(-0.2))


def test_a_small_gain_is_not_tried_and_not_evaluated_again() -> None:
    found, oracle = controller({3: 0.02})
    assert run(found, RUNNING, 2.0, 100) is None
    assert oracle.num_calls == 1


def test_a_slower_configuration_is_rolled_back_and_not_tried_twice() -> None:
    found, oracle = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    back = run(found, tried.plan, 2.2, THRESHOLDS.skip + THRESHOLDS.window)
    assert back is not None
    assert back.kind == REGRET
    assert back.plan == RUNNING
    assert run(found, RUNNING, 2.0, 50) is None
    (case,) = found.memory.cases
    assert case.predicted == pytest.approx(0.2)
    assert case.measured == pytest.approx(np.log(2.0 / 2.2))
    assert oracle.num_calls == 2  # another candidate might have been better


def test_a_rejected_configuration_may_be_tried_again_after_a_change_of_the_network() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    assert run(found, tried.plan, 2.2, 10) is not None
    assert run(found, RUNNING, 2.0, 10) is None
    again = run(found, RUNNING, 4.0, 10)
    assert again is not None
    assert again.plan == CANDIDATES.plans[3]


def test_a_faster_configuration_stays_and_is_learned_from() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    assert run(found, tried.plan, 1.7, 30) is None
    assert found.memory.cases[0].measured == pytest.approx(np.log(2.0 / 1.7))


def test_no_switch_is_verified_while_compute_times_change() -> None:
    found, _ = controller({3: 0.2})
    tried = run(found, RUNNING, 2.0, 10)
    assert tried is not None
    for number in range(10):
        found.observe(tried.plan, tuple(replace(stats, step=number) for stats in steps(3.0, compute_s=2.0)))
        assert found.propose() is None
    assert not found.memory.cases


def test_the_result_of_a_background_task_is_used_later_and_only_for_its_plan() -> None:
    """Samples move while candidates are evaluated: they are evaluated again for the new split."""
    waiting: list[tuple[Future[Any], Any]] = []

    def submit(task: Any) -> Future[Any]:
        waiting.append((Future(), task))
        return waiting[-1][0]

    memory, oracle = Memory(MetaNetwork.cold()), Oracle({3: 0.2})
    memory.network = oracle  # type: ignore[assignment]

    def candidates_for(running: Plan) -> Candidates:
        return Candidates(plans=tuple(replace(plan, batch=running.batch) for plan in CANDIDATES.plans))

    found = CommController(PRIORS, candidates_for, memory, submit=submit)
    assert run(found, RUNNING, 2.0, 20) is None
    moved = replace(RUNNING, batch=BatchPlan(samples=(5, 3, 2, 2)))
    assert run(found, moved, 2.0, 3) is None
    done, task = waiting.pop()
    done.set_result(task())
    assert run(found, moved, 2.0, 10) is None
    done, task = waiting.pop()
    done.set_result(task())
    switch = run(found, moved, 2.0, 1)
    assert switch is not None
    assert switch.plan == replace(CANDIDATES.plans[3], batch=moved.batch)
    assert oracle.num_calls == 2


STATED = load_cluster("mixed4")


def probing(gains: dict[int, float], probe_bytes: int = 0) -> CommController:
    """A controller that may probe the links."""
    memory, oracle = Memory(MetaNetwork.cold()), Oracle(gains)
    memory.network = oracle  # type: ignore[assignment]

    def candidates_for(running: Plan) -> Candidates:
        return Candidates(plans=tuple(dict.fromkeys([*CANDIDATES.plans, running])))

    return CommController(PRIORS, candidates_for, memory, links=LinkEstimate(STATED, probe_bytes=probe_bytes))


def received(*speeds: float) -> list[list[float]]:
    """Receive speeds of hosts with such links, from the first, second and third host before them."""
    return [[min(speeds[(host - back) % 4], speed) for back in (1, 2, 3)] for host, speed in enumerate(speeds)]


def test_links_are_probed_before_the_next_evaluation_and_the_changed_link_is_named() -> None:
    found = probing({})
    assert run(found, RUNNING, 2.0, 20) is None  # no change, no link probe
    probe = run(found, RUNNING, 3.0, 20)
    assert probe is not None
    assert (probe.kind, probe.switches, probe.plan) == (LOOK, False, RUNNING)
    finding = found.update_links(received(125e6, 25e6, 125e6, 125e6))
    assert finding == Finding(what="host1's link carries 0.2 times what it did", ranks=(1,))
    assert run(found, RUNNING, 3.0, 50) is None


def test_links_are_not_probed_if_a_probe_sends_far_more_than_training() -> None:
    """A link probe of 1 MB: made if a step sends 200 kB, not if it sends 20 kB."""
    for num_bytes, is_probed in ((200e3, True), (20e3, False)):
        found = probing({}, probe_bytes=1_000_000)
        sent = PartSums.of([Part(num_bytes=num_bytes, ready_s=0.0, posted_s=0.0, end_s=0.1)])
        switches = []
        for number in range(40):
            seen = steps(2.0 if number < 20 else 3.0)
            found.observe(RUNNING, tuple(replace(stats, step=number, parts=sent) for stats in seen))
            switches.append(found.propose())
        assert any(switch is not None and switch.kind == LOOK for switch in switches) == is_probed


def test_a_flapping_network_is_probed_less_and_less() -> None:
    found, probes = probing({}), []
    for number in range(300):
        step_s = 3.0 if number // 7 % 2 else 2.0
        found.observe(RUNNING, tuple(replace(stats, step=number) for stats in steps(step_s)))
        if (switch := found.propose()) is not None and switch.kind == LOOK:
            probes.append(number)
            found.update_links(received(125e6, 125e6, 125e6, 125e6))
    assert 3 <= len(probes) <= 6
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert gaps == sorted(gaps)


def test_candidates_have_the_owner_shares_for_the_links() -> None:
    shards = next(index for index, plan in enumerate(CANDIDATES.plans) if plan.comm.collective == "shards")
    found = probing({shards: 0.2})
    found._evaluated = window(steps(9.0), RUNNING, PRIORS)
    probe = run(found, RUNNING, 3.0, 20)
    assert probe is not None
    found.update_links(received(125e6, 25e6, 125e6, 125e6))
    switch = run(found, RUNNING, 3.0, THRESHOLDS.window)
    assert switch is not None
    assert switch.switches
    assert switch.plan.comm.shares[1] == 0.0
    assert sum(switch.plan.comm.shares) == 1.0
    assert replace(switch.plan, comm=replace(switch.plan.comm, shares=())) == CANDIDATES.plans[shards]


def test_owner_shares_of_the_running_plan_change_after_a_link_probe() -> None:
    """Half of what is sent over the dropped link need not be: 16 MB of 32 at 25 MB/s, of a step of 3 s."""
    shards = replace(RUNNING, comm=CommPlan(collective="shards"))
    found = probing({})
    sent = PartSums.of([Part(num_bytes=32e6, ready_s=0.0, posted_s=0.0, end_s=1.0)])
    for number in range(10):
        found.observe(shards, tuple(replace(stats, step=number, parts=sent) for stats in steps(1.5)))
        assert found.propose() is None
    for number in range(10, 10 + THRESHOLDS.steps):
        found.observe(shards, tuple(replace(stats, step=number, parts=sent) for stats in steps(3.0)))
    probe = found.propose()
    assert probe is not None
    found.update_links(received(125e6, 25e6, 125e6, 125e6))
    switch = found.propose()
    assert switch is not None
    assert switch.plan.comm.shares[1] == 0.0
    assert switch.predicted_gain == pytest.approx(16 / 25 / 3, rel=0.01)
    assert switch.ranks == (1,)
    back = run(found, switch.plan, 3.2, 10)
    assert back is not None
    assert (back.kind, back.plan) == (REGRET, shards)


def test_priors_include_the_gain_of_other_owner_shares() -> None:
    """One host of four at a fifth: equal owner shares put 1.5 times as many bytes on it as shares without that host."""
    stated = STATED
    now = with_links(stated, links_of(received(125e6, 25e6, 125e6, 125e6)))
    shards = CommPlan(collective="shards")
    priors = PRIORS.on_links(now, stated, shards)
    spared = replace(shards, shares=plan_shares(now))
    assert priors.collective_gain(CommPlan()) == 1.0
    assert priors.collective_gain(spared) / priors.collective_gain(shards) == pytest.approx(1.5, rel=0.01)


def test_the_shipped_network_finds_a_better_configuration_on_a_slow_network() -> None:
    """One bucket after the backward pass; partitions would overlap it. Steps are simulated."""
    simulator = make_simulated(0.5e6)
    found = CommController(PRIORS, lambda _running: Candidates(plans=CANDIDATES.plans), Memory(MetaNetwork.shipped()))
    by_step = [observed(simulator, RUNNING, 1) for _ in range(THRESHOLDS.skip + THRESHOLDS.window)]
    switch = None
    for number, entries in enumerate(by_step):
        found.observe(RUNNING, tuple(replace(entry, step=number) for entry in entries))
        switch = switch or found.propose()
    best_s = min(simulator.step_s(plan) for plan in CANDIDATES.plans)
    chosen_s = simulator.step_s(switch.plan if switch is not None else RUNNING)
    assert chosen_s <= 1.1 * best_s
