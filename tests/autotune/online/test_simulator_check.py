"""The simulator check, on the devices and links that were measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.online.meta_network import GainEstimate
from autotune.online.simulator_check import SimulatorCheck, averaged
from autotune.workloads.cluster import Cluster
from tests.autotune.online.jobs import SAMPLES, make_candidates, seen
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph, make_simulator

GRAPH = make_graph(8, param_bytes=4 * MB)
PLANS = make_candidates().plans
SLOW, FAST = (make_cluster([speed] * 4) for speed in (0.5 * MB, 50 * MB))


def make_check() -> SimulatorCheck:
    return SimulatorCheck(make_simulator(GRAPH, SLOW, sum(SAMPLES)).info, GRAPH)


@pytest.mark.parametrize("cluster", [SLOW, FAST])
def test_gains_equal_those_of_a_simulator_on_the_same_links(cluster: Cluster) -> None:
    simulator = make_simulator(GRAPH, cluster, sum(SAMPLES))
    found = make_check().gains(PLANS, seen(PLANS[0]), cluster)
    expected = [np.log(simulator.step_s(PLANS[0]) / simulator.step_s(plan)) for plan in PLANS]
    assert found == pytest.approx(expected)


def test_devices_have_the_speeds_of_the_window() -> None:
    window = seen(PLANS[0])
    check = make_check()
    assert check.as_seen(SLOW, window) is SLOW
    first, *rest = window.ranks
    slower = replace(window, ranks=(replace(first, compute_s=3 * first.compute_s), *rest))
    speeds = [device.flops_per_s for device in check.as_seen(SLOW, slower).devices]
    stated = [device.flops_per_s or 0.0 for device in SLOW.devices]
    assert speeds == pytest.approx([stated[0] / 3, *stated[1:]])


def test_a_difference_of_predictions_adds_to_the_spread() -> None:
    estimate = GainEstimate(mean=np.array([0.0, 0.4]), spread=np.array([0.1, 0.1]))
    both = averaged(estimate, [0.0, 0.0])
    assert both.mean.tolist() == [0.0, 0.2]
    assert both.spread.tolist() == pytest.approx([0.05, 0.25])
