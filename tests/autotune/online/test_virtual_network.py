"""All shipped traces by the simulator's clock, devices and links: what retuning gains of what one who knows the trace does."""

from __future__ import annotations

from dataclasses import replace

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
"""Where one who knows gains less, there is nothing to be had."""


def ratios(run: VirtualRun, *, asks_simulator: bool) -> tuple[float, float, float]:
    """Over the best static plan: one who knows, retuned, and the plan for the mix as stated left alone."""
    stretches = run.stretches
    static_s, start = stretches.total_s(stretches.best_static()), stretches.plans[run.stated]
    known_s, left_s = run.total_s(stretches.oracle()), stretches.total_s(start)
    run.noise = 0.005
    retuned_s = run.retuned_s(controller_for(run, start, asks_simulator=asks_simulator)) / (1 + run.noise)
    return static_s / known_s, static_s / retuned_s, static_s / left_s


@pytest.mark.parametrize("asks_simulator", [True, False])
@pytest.mark.parametrize("trace", STEPS)
def test_retuning_on_every_trace(trace: str, asks_simulator: bool) -> None:
    known, retuned, left = ratios(virtual_run(trace, STEPS[trace]), asks_simulator=asks_simulator)
    if known > WORTH_IT:
        assert retuned - 1 >= 0.88 * (known - 1)
    assert retuned >= 0.99 * min(left, 1.0)
    assert retuned >= 0.9


def test_where_the_simulator_likes_another_way_both_are_to_be_measured() -> None:
    stretches = virtual_run("link-drop", 80).stretches
    best, alike = stretches.static_plans()
    first = stretches.plans[stretches.mixes[0]]
    assert best.comm.reducer != first.comm.reducer
    assert replace(alike.comm, shares=()) == replace(first.comm, shares=())
    assert stretches.total_s(alike) <= stretches.total_s(first)
    for script in stretches.oracles():
        assert len(script) == 80
        assert len(set(script[:40])) == len(set(script[40:])) == 1
    assert len(virtual_run("busy-neighbour", 80).stretches.static_plans()) == 1


def test_a_link_that_drops_is_named_and_its_host_owns_nothing_any_more() -> None:
    run = virtual_run("link-drop", 80)
    controller = controller_for(run, run.stretches.plans[run.stated])
    run.retuned_s(controller)
    look, network, switch, *_ = controller.decisions
    assert (look.kind, look.switches) == (LOOK, False)
    assert 41 <= look.step <= 46
    assert (network.kind, network.ranks) == (NETWORK, (1,))
    assert "host1's link carries 0.2" in network.reason
    assert not network.switches
    assert (switch.reason, switch.ranks) == (network.reason, network.ranks)
    assert switch.plan.comm.shares[1] == 0.0
    run.stretches.predictors[run.stated].simulator.step_s(switch.plan)
    assert controller.plan.batch.samples == run.stretches.plans[run.stated].batch.samples
