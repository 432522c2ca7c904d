"""The simulator's opinion, on devices and links as they were seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.online.meta_network import Guess
from autotune.online.simulator_check import SecondOpinion, averaged
from autotune.workloads.cluster import Cluster
from tests.autotune.online.jobs import SAMPLES, offered, seen
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph, make_simulator

GRAPH = make_graph(8, param_bytes=4 * MB)
PLANS = offered().plans
SLOW, FAST = (make_cluster([speed] * 4) for speed in (0.5 * MB, 50 * MB))


def opinion() -> SecondOpinion:
    return SecondOpinion(make_simulator(GRAPH, SLOW, sum(SAMPLES)).info, GRAPH)


@pytest.mark.parametrize("cluster", [SLOW, FAST])
def test_on_the_links_that_are_there_it_says_what_the_simulator_says(cluster: Cluster) -> None:
    simulator = make_simulator(GRAPH, cluster, sum(SAMPLES))
    found = opinion().gains(PLANS, seen(PLANS[0]), cluster)
    expected = [np.log(simulator.step_s(PLANS[0]) / simulator.step_s(plan)) for plan in PLANS]
    assert found == pytest.approx(expected)


def test_devices_that_are_slower_than_stated_are_taken_as_they_are() -> None:
    window = seen(PLANS[0])
    opinionated = opinion()
    assert opinionated.as_seen(SLOW, window) is SLOW
    first, *rest = window.ranks
    slower = replace(window, ranks=(replace(first, compute_s=3 * first.compute_s), *rest))
    speeds = [device.flops_per_s for device in opinionated.as_seen(SLOW, slower).devices]
    stated = [device.flops_per_s or 0.0 for device in SLOW.devices]
    assert speeds == pytest.approx([stated[0] / 3, *stated[1:]])


def test_where_opinions_differ_there_is_doubt() -> None:
    guess = Guess(mean=np.array([0.0, 0.4]), spread=np.array([0.1, 0.1]))
    both = averaged(guess, [0.0, 0.0])
    assert both.mean.tolist() == [0.0, 0.2]
    assert both.spread.tolist() == pytest.approx([0.05, 0.25])
