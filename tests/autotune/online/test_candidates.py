"""The plans to choose from: the default among them, all of them allowed and runnable, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.online.candidates import Parts, candidates, default_candidate
from autotune.online.message_layout import plan_shape
from autotune.online.model_sizes import ModelSizes
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CODECS, ONE_ROUND_CODECS, default_plan
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_simulated, make_space, offered


@pytest.mark.parametrize("codecs", [("none",), ONE_ROUND_CODECS, CODECS, ("none", "int8")])
def test_candidates_are_allowed_and_can_run(codecs):
    found = offered(codecs=codecs)
    assert len(set(found.plans)) == len(found.plans)
    for plan in found.plans:
        plan.validate(num_ranks=4, global_batch=12)
        plan.check_runnable()
        assert plan.batch.samples == SAMPLES
        assert plan.compression.codec in codecs


def test_the_default_is_always_a_candidate():
    found = offered()
    assert found.plans[found.default] == default_candidate(SAMPLES, transport="gloo")
    ddp = default_plan(SAMPLES)
    mine = candidates(make_space(), SAMPLES, transport="gloo", default=ddp, also=(found.plans[7],))
    assert mine.plans[mine.default] == ddp
    assert mine.index(found.plans[7]) == 1


def test_every_knob_is_tried():
    comms = [plan.comm for plan in offered().plans]
    scheduled = [comm for comm in comms if comm.reducer == "scheduled"]
    assert {comm.collective for comm in comms} == {"ring", "shards"}
    assert {comm.reducer for comm in comms} == {"bucketed", "scheduled"}
    assert len({comm.partition_bytes for comm in scheduled}) > 3
    assert len({comm.credit_bytes // comm.partition_bytes for comm in scheduled}) == 3
    assert {(comm.crosses_steps, comm.priority) for comm in scheduled} == {
        (True, "layer"),
        (True, "fifo"),
        (False, "layer"),
    }


def test_what_may_change_is_what_differs_whoever_owns_shards():
    found = offered(codecs=ONE_ROUND_CODECS)
    plain = next(p for p in found.plans if p.comm.collective == "shards" and p.comm.reducer == "bucketed")
    running = replace(plain, comm=replace(plain.comm, shares=(0.25,) * 4))
    codec = Parts(samples=False, partition=False, collective=False)
    allowed = [plan for plan in found.plans if codec.allow(plan, running)]
    assert {plan.compression.codec for plan in allowed} == set(ONE_ROUND_CODECS)
    assert {(plan.comm.collective, plan.comm.reducer, plan.comm.bucket_bytes) for plan in allowed} == {
        ("shards", "bucketed", running.comm.bucket_bytes)
    }
    partition = Parts(samples=False, codec=False, collective=False)
    sizes = {plan.comm.bucket_bytes for plan in found.plans if partition.allow(plan, running)}
    assert len(sizes) > 3


def test_a_stranger_is_no_candidate():
    with pytest.raises(SpecError, match="pass it in `also`"):
        offered().index(default_plan(SAMPLES))


def test_one_rank_has_nothing_to_choose():
    space = make_space(num_ranks=1)
    assert {plan.comm.reducer for plan in candidates(space, (12,), transport="gloo").plans} == {"bucketed"}


@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_shapes_are_what_the_simulator_sends(codec):
    simulator, model = make_simulated(), ModelSizes.of(GRAPH)
    for plan in offered(codecs=(codec,)).plans[1:]:
        sent, shape = simulator.wire_bytes(plan), plan_shape(plan, model)
        assert shape.num_messages == len(sent)
        assert shape.wire_bytes == pytest.approx(sum(sent))
        assert shape.largest_bytes == pytest.approx(max(sent))
        assert shape.late_bytes[0] == pytest.approx(sum(sent))
