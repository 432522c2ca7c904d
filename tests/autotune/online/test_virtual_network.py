"""All shipped scenarios in simulated time, devices and links: the gain of retuning relative to that of an oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autotune.results.store.decision import LOOK, NETWORK
from tests.autotune.online.virtual_network import VirtualRun, controller_for, virtual_run

STEPS = {
    "busy-neighbour": 160,
    "random-walk": 160,
    "speed-drift": 100,
    "bandwidth-swing": 80,
    "link-drop": 80,
    "steady": 80,
}
WORTH_IT = 1.05
"""Least gain of the oracle for retuning to be compared with it."""


@cache
def without_retuning(scenario: str) -> tuple[VirtualRun, float, float, float]:
    """A job, and its time by the best static plan, by an oracle, and by the plan for the stated cluster."""
    run = virtual_run(scenario, STEPS[scenario])
    stretches = run.stretches
    static_s, start = stretches.total_s(stretches.best_static()), stretches.plans[run.stated]
    oracle_s, left_s = run.total_s(stretches.oracle()), stretches.total_s(start)
    run.noise = 0.005
    return run, static_s, oracle_s, left_s


def ratios(scenario: str, *, checks_simulator: bool) -> tuple[float, float, float]:
    """Throughput relative to the best static plan: of an oracle, of retuning, and of the plan for the stated cluster."""
    run, static_s, oracle_s, left_s = without_retuning(scenario)
    start = run.stretches.plans[run.stated]
    retuned_s = run.retuned_s(controller_for(run, start, checks_simulator=checks_simulator)) / (1 + run.noise)
    return static_s / oracle_s, static_s / retuned_s, static_s / left_s


@pytest.mark.parametrize("checks_simulator", [True, False])
@pytest.mark.parametrize("scenario", STEPS)
def test_retuning_in_every_scenario(scenario: str, checks_simulator: bool) -> None:
    oracle, retuned, left = ratios(scenario, checks_simulator=checks_simulator)
    if oracle > WORTH_IT:
        assert retuned - 1 >= 0.88 * (oracle - 1)
    assert retuned >= 0.99 * min(left, 1.0)
    assert retuned >= 0.9


def test_static_plans_include_the_configuration_of_the_first_plan() -> None:
    stretches = virtual_run("link-drop", 80).stretches
    best, alike = stretches.static_plans()
    first = stretches.plans[stretches.clusters[0]]
    assert best.comm.reducer != first.comm.reducer
    assert replace(alike.comm, shares=()) == replace(first.comm, shares=())
    assert stretches.total_s(alike) <= stretches.total_s(first)
    for script in stretches.oracles():
        assert len(script) == 80
        assert len(set(script[:40])) == len(set(script[40:])) == 1
    assert len(virtual_run("busy-neighbour", 80).stretches.static_plans()) == 1


def test_a_dropped_link_is_named_and_its_host_owns_nothing() -> None:
    run = virtual_run("link-drop", 80)
    controller = controller_for(run, run.stretches.plans[run.stated])
    run.retuned_s(controller)
    probe, network, switch, *_ = controller.decisions
    assert (probe.kind, probe.switches) == (LOOK, False)
    assert 41 <= probe.step <= 46
    assert (network.kind, network.ranks) == (NETWORK, (1,))
    assert "host1's link carries 0.2" in network.reason
    assert not network.switches
    assert (switch.reason, switch.ranks) == (network.reason, network.ranks)
    assert switch.plan.comm.shares[1] == 0.0
    run.stretches.predictors[run.stated].simulator.step_s(switch.plan)
    assert controller.plan.batch.samples == run.stretches.plans[run.stated].batch.samples
