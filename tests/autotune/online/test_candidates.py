"""Candidates: unique, allowed, runnable, with the default among them; and the messages that each of them sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.online.candidates import Retunable, candidates, default_candidate
from autotune.online.message_layout import layout_of
from autotune.online.model_sizes import ModelSizes
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CODECS, default_plan, one_round_codecs
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_candidates, make_simulated, make_space


@pytest.mark.parametrize("codecs", [("none",), one_round_codecs(), CODECS.names(), ("none", "int8")])
def test_candidates_are_allowed_and_can_run(codecs):
    found = make_candidates(codecs=codecs)
    assert len(set(found.plans)) == len(found.plans)
    for plan in found.plans:
        plan.validate(num_ranks=4, global_batch=12)
        plan.check_runnable()
        assert plan.batch.samples == SAMPLES
        assert plan.compression.codec in codecs


def test_the_default_is_always_a_candidate():
    found = make_candidates()
    assert found.plans[found.default] == default_candidate(SAMPLES, transport="gloo")
    ddp = default_plan(SAMPLES)
    mine = candidates(make_space(), SAMPLES, transport="gloo", default=ddp, also=(found.plans[7],))
    assert mine.plans[mine.default] == ddp
    assert mine.index(found.plans[7]) == 1


def test_every_knob_is_varied():
    comms = [plan.comm for plan in make_candidates().plans]
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


def test_only_retunable_parts_differ_whatever_the_owner_shares():
    found = make_candidates(codecs=one_round_codecs())
    plain = next(p for p in found.plans if p.comm.collective == "shards" and p.comm.reducer == "bucketed")
    running = replace(plain, comm=replace(plain.comm, shares=(0.25,) * 4))
    codec = Retunable(samples=False, partition=False, collective=False)
    allowed = [plan for plan in found.plans if codec.allow(plan, running)]
    assert {plan.compression.codec for plan in allowed} == set(one_round_codecs())
    assert {(plan.comm.collective, plan.comm.reducer, plan.comm.bucket_bytes) for plan in allowed} == {
        ("shards", "bucketed", running.comm.bucket_bytes)
    }
    partition = Retunable(samples=False, codec=False, collective=False)
    sizes = {plan.comm.bucket_bytes for plan in found.plans if partition.allow(plan, running)}
    assert len(sizes) > 3


def test_the_index_of_another_plan_is_an_error():
    with pytest.raises(SpecError, match="pass it in `also`"):
        make_candidates().index(default_plan(SAMPLES))


def test_one_rank_has_one_reducer():
    space = make_space(num_ranks=1)
    assert {plan.comm.reducer for plan in candidates(space, (12,), transport="gloo").plans} == {"bucketed"}


@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_layouts_equal_the_messages_of_the_simulator(codec):
    simulator, model = make_simulated(), ModelSizes.of(GRAPH)
    for plan in make_candidates(codecs=(codec,)).plans[1:]:
        sent, layout = simulator.wire_bytes(plan), layout_of(plan, model)
        assert layout.num_messages == len(sent)
        assert layout.wire_bytes == pytest.approx(sum(sent))
        assert layout.largest_bytes == pytest.approx(max(sent))
        assert layout.late_bytes[0] == pytest.approx(sum(sent))
