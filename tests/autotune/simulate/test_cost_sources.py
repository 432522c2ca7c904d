"""What all-reduces cost beyond their bytes: as a profile measured each kind, alone and in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.results.store.fits import TransferFit, TransferRow
from autotune.results.store.profile import CollectiveProfile
from autotune.simulate.collectives import all_reduce_latency_s, num_messages, sum_phases
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.autotune.jobs.predictions import digits_graph, make_profile, simulator_of

CLUSTER = load_cluster("two-hosts-of-two")
SIZES = (512, 8192, 131072)
SEVERAL = 8


@pytest.fixture(scope="module")
def graph() -> Any:
    return digits_graph()


def links_s(collective: str, num_bytes: float) -> float:
    """Of the links alone, phase after phase."""
    phases = sum_phases(CommPlan(collective=collective), CLUSTER, num_bytes)
    return sum(CLUSTER.topology.busy_s(phase) for phase in phases) + all_reduce_latency_s(collective, CLUSTER)


def rows(seconds: list[float]) -> tuple[TransferRow, ...]:
    return tuple(
        TransferRow.measured("all-reduce", 4, size, each_s, 0) for size, each_s in zip(SIZES, seconds, strict=True)
    )


def measured(collective: str, software_s: float, serial_s: float) -> CollectiveProfile:
    """Each takes `software_s` and its links; `serial_s` of it are paid one after another."""
    alone = [software_s + links_s(collective, size) for size in SIZES]
    in_flight = [(one + (SEVERAL - 1) * serial_s) / SEVERAL for one in alone]
    return CollectiveProfile(
        kind="all-reduce",
        transport="gloo",
        num_ranks=4,
        fit=TransferFit.measured(rows(alone)),
        rows=rows(alone),
        collective=collective,
        in_flight=rows(in_flight),
        num_in_flight=SEVERAL,
    )


def simulator(graph: Any, *collectives: CollectiveProfile) -> Simulator:
    profile = replace(make_profile(graph, CLUSTER), collectives=collectives)
    found: Simulator = simulator_of(graph, CLUSTER, [profile])
    return found


def plan(collective: str, bucket_bytes: int) -> Plan:
    comm = CommPlan(collective=collective, bucket_bytes=bucket_bytes)
    return Plan(batch=BatchPlan(samples=(16, 16, 16, 16)), comm=comm)


def test_each_collective_costs_what_was_measured_of_it(graph: Any) -> None:
    found = simulator(graph, measured("ring", 0.001, 0.001), measured("hierarchical", 0.004, 0.002))
    ring, ours = (found.costs.all_reduce("gloo", name) for name in ("ring", "hierarchical"))
    sizes = np.array(SIZES, np.float64)
    assert ring.overhead(sizes) == pytest.approx(np.full(3, 0.001))
    assert ours.overhead(sizes) == pytest.approx(np.full(3, 0.004))
    assert ours.serial(sizes) == pytest.approx(np.full(3, 0.002))
    assert found.costs.all_reduce("gloo", "shards") is ring  # was not measured
    slow = simulator(graph, measured("ring", 0.001, 0.001), measured("hierarchical", 0.014, 0.002))
    whole = plan("hierarchical", 2**30)
    assert slow.step_s(whole) - found.step_s(whole) == pytest.approx(0.01)
    assert slow.step_s(plan("ring", 2**30)) == found.step_s(plan("ring", 2**30))


def test_software_of_many_in_flight_is_paid_one_after_another(graph: Any) -> None:
    """As many all-reduces as parameters, all ready before the first is done: each adds its serial part."""
    number = len(simulator(graph)._buffers_of(plan("hierarchical", 1)).wire_bytes)
    assert number > 3
    steps_s = []
    for serial_s in (0.0, 1.0, 2.0):
        found = simulator(graph, measured("ring", 0.001, 0.001), measured("hierarchical", 10.0, serial_s))
        steps_s.append(found.step_s(plan("hierarchical", 1)))
    assert steps_s[1] - steps_s[0] == pytest.approx((number - 1) * 1.0, rel=0.02)
    assert steps_s[2] - steps_s[1] == pytest.approx((number - 1) * 1.0, rel=0.02)


def test_profiles_without_all_reduces_in_flight_predict_as_before(graph: Any) -> None:
    alone = replace(measured("ring", 0.003, 0.001), in_flight=(), num_in_flight=0)
    found = simulator(graph, alone)
    buffers = found._buffers_of(plan("ring", 1))
    assert buffers.fixed_s == pytest.approx(np.full(len(buffers.fixed_s), 0.003))
    assert len(buffers.load_link) == len(CLUSTER.topology.edges)


def test_a_rank_of_a_larger_job_sends_more_messages() -> None:
    assert num_messages("ring", [0, 0, 1, 1]) == num_messages("shards", [0, 0, 1, 1]) == 6
    assert num_messages("hierarchical", [0, 0, 1, 1]) == 2 + 2
    assert num_messages("hierarchical", [0, 0, 0, 0, 1, 2]) == 6 + 4
    costs = cost_model(digits_graph(), CLUSTER)
    assert costs.all_reduce("gloo", "hierarchical").overhead(np.ones(1)) == 0.0
