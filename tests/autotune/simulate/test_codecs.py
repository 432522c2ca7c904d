"""Costs of codecs and sufficient factors in a predicted step, against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.simulate.cost_tables import Lines, OpTimes, TransportCosts
from autotune.simulate.simulator import Simulator
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, KindCodec, Plan
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph, make_simulator

NOTHING = np.zeros(2)


def scheduled(compression: CompressionPlan, *, partition_bytes: int = 10**9) -> Plan:
    comm = CommPlan(reducer="scheduled", partition_bytes=partition_bytes, credit_bytes=10**9)
    return Plan(batch=BatchPlan(samples=(1, 3)), comm=comm, compression=compression)


def simulator_of(*, kinds: tuple[str, ...] = ("Linear",), shape: tuple[int, ...] = (1000, 2500)) -> Simulator:
    """One op of 1 s a sample for each kind, a parameter of 10 MB each, on two hosts with fast links."""
    graph = make_graph(len(kinds))
    parameters = tuple(replace(p, kind=kind, shape=shape) for p, kind in zip(graph.parameters, kinds, strict=True))
    ops = tuple(replace(op, factor_shapes=(shape[:2],)) for op in graph.ops)
    return make_simulator(replace(graph, ops=ops, parameters=parameters), make_cluster([1e15, 1e15]), 4)


def with_costs(simulator: Simulator, **changes: object) -> Simulator:
    return Simulator(simulator.info, simulator.graph, replace(simulator.costs, **changes))


def as_measured(stated: OpTimes, *, error: float = 0.0) -> OpTimes:
    return OpTimes(
        arithmetic_s=np.zeros_like(stated.arithmetic_s),
        fixed_s=stated.fixed_s,
        per_sample_s=stated.arithmetic_s + error,
        launch_s=stated.launch_s,
    )


def test_errors_of_probes_that_cancel_leave_products_right() -> None:
    """A probe that books some of an op's forward pass as its backward pass: a third of both is one product."""
    stated = simulator_of()
    forward, backward = stated.costs.forward, stated.costs.backward
    profiled = with_costs(stated, forward=as_measured(forward, error=-0.25), backward=as_measured(backward, error=0.25))
    plan = scheduled(CompressionPlan(factors=("op0",)))
    assert profiled.step_s(plan) == pytest.approx(stated.step_s(plan), rel=1e-6)


def test_products_of_factors_cost_the_same_by_datasheet_and_by_profile() -> None:
    """Each rank multiplies the rows of the other, once they are there: rank 0 three samples' worth, rank 1 one."""
    stated = simulator_of()
    plan = scheduled(CompressionPlan(factors=("op0",)))
    profiled = with_costs(
        stated, forward=as_measured(stated.costs.forward), backward=as_measured(stated.costs.backward)
    )
    assert stated.step_s(scheduled(CompressionPlan())) == pytest.approx(9.0, rel=1e-6)
    assert stated.step_s(plan) == pytest.approx(9.0 + 3.0, rel=1e-6)
    assert profiled.step_s(plan) == pytest.approx(stated.step_s(plan), rel=1e-9)


def test_what_is_rebuilt_during_the_backward_pass_delays_it() -> None:
    """Three ops; the last one's factors arrive while rank 1 is at the second op (15 to 21 s). Its product (1 s) comes before the
    first op's backward pass, which ends at 28 s instead of 27, and whose sum takes 1 s.
    """
    graph = simulator_of(kinds=("Linear",) * 3).graph
    found = make_simulator(graph, make_cluster([1e7, 1e7]), 4)
    assert found.step_s(scheduled(CompressionPlan(), partition_bytes=10 * MB)) == pytest.approx(28.0, rel=1e-3)
    factored = scheduled(CompressionPlan(factors=("op2",)), partition_bytes=10 * MB)
    assert found.step_s(factored) == pytest.approx(29.0, rel=1e-3)


@pytest.mark.parametrize(("codec", "times"), [("none", 1), ("fp16", 1), ("powersgd", 2)])
def test_every_sum_of_a_codec_pays_for_the_software_of_a_collective(codec: str, times: int) -> None:
    overhead = TransportCosts(sizes=np.array([0.0, 1e9]), overhead_s=np.array([0.5, 0.5]))
    found = with_costs(simulator_of(), transports={"gloo": overhead})
    assert found.step_s(scheduled(CompressionPlan(codec=codec))) == pytest.approx(9.0 + 0.5 * times, rel=1e-4)


def test_a_kind_of_layers_alone_costs_its_own_bytes_time_and_memory() -> None:
    """Two parameters of 10 MB; only the Linear one is rounded, which takes a second to encode and two to decode."""
    lines = {"fp16": Lines(fixed_s=NOTHING + 1.0, slope_s=NOTHING)}
    twice = {"fp16": Lines(fixed_s=NOTHING + 2.0, slope_s=NOTHING)}
    found = with_costs(simulator_of(kinds=("Conv2d", "Linear")), encode=lines, decode=twice)
    plain, whole = scheduled(CompressionPlan()), scheduled(CompressionPlan(codec="fp16"), partition_bytes=10 * MB)
    alone = scheduled(CompressionPlan(by_kind=(KindCodec(kind="Linear", codec="fp16"),)))
    assert sum(found.wire_bytes(alone)) == 15 * MB
    assert found.step_s(plain) == pytest.approx(18.0, rel=1e-6)
    assert found.step_s(alone) == pytest.approx(18.0 + 3.0, rel=1e-6)
    assert found.step_s(whole) == pytest.approx(18.0 + 6.0, rel=1e-6)
    held = [found.peak_memory_bytes(plan, found.simulate(plan))[0] for plan in (plain, alone, whole)]
    assert [size - held[0] for size in held] == [0, 15 * MB, 30 * MB]
