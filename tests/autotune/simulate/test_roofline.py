"""The cost of an op on a device against closed forms, and the simulator's tables against `op_s`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulate.cost_sources import cost_model
from autotune.simulate.roofline import compute_s, op_s
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.graph import Op, OpGraph

DEVICE = Device(name="d", flops_per_s=1e6, memory_bytes_per_s=1e5)


def op(  # noqa: PLR0913 - the fields that cost
    *,
    flops: float = 100.0,
    fixed_bytes: float = 0.0,
    bytes_per_sample: float = 0.0,
    factor: float = 2.0,
    num_calls: int = 1,
    name: str = "op",
) -> Op:
    return Op(
        name=name,
        kind="Linear",
        num_calls=num_calls,
        flops_per_sample=flops,
        fixed_bytes=fixed_bytes,
        bytes_per_sample=bytes_per_sample,
        param_bytes=0,
        backward_factor=factor,
    )


def test_arithmetic_takes_flops_over_speed() -> None:
    assert op_s(op(flops=100), DEVICE, 8) == pytest.approx(8 * 100 / 1e6)


def test_traffic_takes_bytes_over_bandwidth_the_fixed_part_once() -> None:
    heavy = op(flops=0, fixed_bytes=500, bytes_per_sample=20)
    assert op_s(heavy, DEVICE, 8) == pytest.approx((500 + 8 * 20) / 1e5)


@pytest.mark.parametrize(("flops", "expected"), [(50.0, 1e-3), (100.0, 1e-3), (200.0, 2e-3)])
def test_the_slower_of_arithmetic_and_traffic_counts_not_their_sum(flops: float, expected: float) -> None:
    """Ten samples move 100 bytes: 1 ms."""
    assert op_s(op(flops=flops, bytes_per_sample=10), DEVICE, 10) == pytest.approx(expected)


def test_a_device_of_unlimited_bandwidth_pays_for_arithmetic_only() -> None:
    device = Device(name="d", flops_per_s=1e6)
    assert op_s(op(flops=100, bytes_per_sample=1e9), device, 1) == pytest.approx(1e-4)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_backward_is_a_multiple_of_forward(factor: float) -> None:
    forward = op_s(op(factor=factor), DEVICE, 4)
    assert op_s(op(factor=factor), DEVICE, 4, backward=True) == pytest.approx(factor * forward)


def test_every_call_pays_its_launch_in_both_directions() -> None:
    device = Device(name="d", flops_per_s=1e6, launch_s=0.5)
    assert op_s(op(flops=0, num_calls=3), device, 4) == pytest.approx(1.5)
    assert op_s(op(flops=0, num_calls=3), device, 4, backward=True) == pytest.approx(1.5)


def test_an_op_without_a_backward_pass_costs_nothing_there_not_even_a_launch() -> None:
    device = Device(name="d", flops_per_s=1e6, launch_s=0.5)
    assert op_s(op(factor=0.0), device, 4, backward=True) == 0.0


def test_no_samples_cost_nothing_not_even_fixed_traffic() -> None:
    device = Device(name="d", flops_per_s=1e6, memory_bytes_per_s=1e5, launch_s=0.5)
    assert op_s(op(fixed_bytes=1e6), device, 0) == 0.0


def test_a_model_costs_the_sum_of_its_ops_in_both_directions() -> None:
    graph = OpGraph(ops=(op(flops=100, factor=1.0), op(flops=300, factor=2.0)), saved_bytes_per_sample=0.0)
    assert compute_s(graph, DEVICE, 5) == pytest.approx(5 * (100 * 2 + 300 * 3) / 1e6)


def test_a_device_of_half_the_speed_takes_twice_the_time() -> None:
    graph = OpGraph(ops=(op(flops=100, bytes_per_sample=7, fixed_bytes=90),), saved_bytes_per_sample=0.0)
    half = Device(name="h", flops_per_s=0.5e6, memory_bytes_per_s=0.5e5)
    assert compute_s(graph, half, 9) == pytest.approx(2 * compute_s(graph, DEVICE, 9))


POSITIVE = st.floats(1e-3, 1e12)
DEVICES = st.builds(
    Device,
    name=st.just("d"),
    flops_per_s=POSITIVE,
    memory_bytes_per_s=st.none() | POSITIVE,
    launch_s=st.floats(0.0, 1.0),
)
OPS = st.builds(
    op,
    flops=st.floats(0.0, 1e15),
    fixed_bytes=st.floats(0.0, 1e12),
    bytes_per_sample=st.floats(0.0, 1e12),
    factor=st.sampled_from([0.0, 1.0, 2.0, 2.7]),
    num_calls=st.integers(1, 9),
)


@given(
    ops=st.lists(OPS, min_size=1, max_size=4),
    ranks=st.lists(st.tuples(DEVICES, st.integers(0, 512) | st.floats(0.0, 512.0)), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_the_simulator_charges_exactly_what_an_emulated_device_is_paced_by(ops, ranks) -> None:
    """Bit for bit: the tables of the simulator and `op_s`, which the pacers call."""
    named = tuple(replace(one, name=f"op{number}") for number, one in enumerate(ops))
    devices, samples = zip(*ranks, strict=True)
    cluster = Cluster(name="random", hosts=(Host(name="host", devices=devices),))
    costs = cost_model(OpGraph(ops=named, saved_bytes_per_sample=0.0), cluster)
    tables = costs.passes(np.array(samples, np.float64))
    for table, backward in zip(tables, (False, True), strict=True):
        expected = [[op_s(one, device, count, backward=backward) for one in named] for device, count in ranks]
        assert table.tolist() == expected
