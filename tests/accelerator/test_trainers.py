"""Trainers on fake accelerators compute what they compute on CPUs: every reducer, codec, model and way to travel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from torch import nn

from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CODECS, BatchPlan, CommPlan, CompressionPlan, Plan, ReducerKind
from autotune.workloads.plan.compression import KindCodec
from tests.accelerator import jobs

NUM_STEPS = 4
MODELS = ("mlp", "resnet", "gpt", "transformer")
IN_PARTS: dict[str, Any] = {
    "reducer": "scheduled",
    "partition_bytes": 2048,
    "credit_bytes": 8192,
    "bucket_bytes": 4096,
}
REDUCERS: dict[str, CommPlan] = {
    "ddp": CommPlan(reducer="ddp"),
    "bucketed": CommPlan(bucket_bytes=4096),
    "averaged": CommPlan(reducer="averaged", average_every=2),
    "scheduled": CommPlan(**IN_PARTS),
    "overlap": CommPlan(**IN_PARTS, crosses_steps=True),
}
SENT = {name: CompressionPlan(codec=name, top_share=0.2) for name in CODECS} | {
    "factors": CompressionPlan(),
    "by kind": CompressionPlan(by_kind=(KindCodec(kind="Linear", codec="int8"),)),
}
"""What gradients look like on the wire; `factors` are filled in from the model."""
FIRST = [
    ("mlp", "overlap", "none"),
    ("transformer", "ddp", "none"),
    ("mlp", "averaged", "none"),
    ("mlp", "scheduled", "topk"),
    ("mlp", "overlap", "powersgd"),
    ("mlp", "bucketed", "fp16"),
]
"""Those that every run of the tests tries; `-m slow` runs all."""


def plan_of(job: Any, reducer: str, sent: str) -> Plan:
    """An uneven split over two ranks."""
    first = job.global_batch // 2 + 1
    compression = SENT[sent]
    if sent == "factors":
        linear = [name for name, module in job.model().named_modules() if isinstance(module, nn.Linear)]
        compression = replace(compression, factors=tuple(linear[:2]))
    return Plan(
        batch=BatchPlan(samples=(first, job.global_batch - first), sync_norm=reducer != "averaged"),
        comm=REDUCERS[reducer],
        compression=compression,
    )


def is_allowed(plan: Plan) -> bool:
    try:
        plan.validate(num_ranks=2, global_batch=sum(plan.batch.samples))
    except SpecError:
        return False
    return True


def allowed() -> list[tuple[str, str, str]]:
    """All models with all pairs of reducer and codec that a plan may have."""
    jobs_by_name = {model: jobs.workload(model) for model in MODELS}
    return [
        (model, reducer, sent)
        for model, job in jobs_by_name.items()
        for reducer in REDUCERS
        for sent in SENT
        if is_allowed(plan_of(job, reducer, sent))
    ]


@cache
def on_cpus(model: str, reducer: str, sent: str, over: str) -> tuple[Any, Plan, list[jobs.Trained]]:
    job = jobs.workload(model)
    plan = plan_of(job, reducer, sent)
    return job, plan, jobs.cpu_ranks(job, plan, NUM_STEPS, over=over)


def away(case: tuple[str, str, str], over: str) -> float:
    job, plan, expected = on_cpus(*case, over if over in jobs.OWNED else "")
    return jobs.away(jobs.device_ranks(job, plan, NUM_STEPS, over=over), expected)


@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize("case", FIRST, ids="-".join)
def test_training_is_that_on_cpus(case: tuple[str, str, str], over: str) -> None:
    assert away(case, over) < 1e-10


@pytest.mark.parametrize("over", jobs.OWNED)
@pytest.mark.parametrize("case", [("transformer", "overlap", "none"), ("mlp", "scheduled", "fp16")], ids="-".join)
def test_sums_by_messages_are_those_on_cpus(case: tuple[str, str, str], over: str) -> None:
    assert away(case, over) < 1e-10


@pytest.mark.parametrize(
    ("reducer", "sent", "collective"),
    [("bucketed", "none", jobs.IN_HOSTS[0]), ("overlap", "none", jobs.IN_HOSTS[1])],
)
def test_sums_within_hosts_first_train_as_a_ring_does(reducer: str, sent: str, collective: str) -> None:
    """Uneven samples on two hosts of two ranks, one rank with none; on CPUs, and staged from fake devices."""
    job = jobs.workload("mlp")
    samples = (job.global_batch - 5, 0, 3, 2)
    plan = replace(plan_of(job, reducer, sent), batch=BatchPlan(samples=samples))
    ring = jobs.cpu_ranks(job, plan, NUM_STEPS)
    assert jobs.away(jobs.cpu_ranks(job, plan, NUM_STEPS, over=collective), ring) < 1e-10
    assert jobs.away(jobs.device_ranks(job, plan, NUM_STEPS, over=collective), ring) < 1e-10


def test_every_reducer_and_codec_is_among_the_cases() -> None:
    cases = allowed()
    assert {reducer for _, reducer, _ in cases} == set(REDUCERS) >= {*ReducerKind}
    assert {sent for _, _, sent in cases} == set(SENT)
    assert set(FIRST) < set(cases)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("over", [jobs.STAGED, jobs.NCCL])
@pytest.mark.parametrize("model", MODELS)
def test_training_is_that_on_cpus_for_all_reducers_and_codecs(model: str, over: str) -> None:
    found = {case: away(case, over) for case in allowed() if case[0] == model and case not in FIRST}
    assert {case: apart for case, apart in found.items() if not apart < 1e-10} == {}
