"""A step of one rank under torch.profiler, and the counters sampled during it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.profilers import ranges
from autotune.profilers.breakdown import break_down
from autotune.profilers.observer import Unavailable
from autotune.profilers.timeline import Span
from autotune.runtime.train import tracing
from autotune.runtime.train.step import Step
from autotune.runtime.train.tracing import ClockOffset, samplers_for, traced_step, within
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.workloads.cluster import Device
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload

WORKLOAD = load_workload("mlp-tiny", {})
BUCKET_BYTES = 1 << 12
CONTEXT = RankContext(rank=0, device=Device(name="cpu"), torch_device=torch.device("cpu"))
CLOCK = ClockOffset(ahead_s=1000.0, error_s=1e-5)


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """Of one rank, over gloo."""
    store, kind = dist.HashStore(), dist.ProcessGroup.BackendType.GLOO
    inner = dist.ProcessGroup(store, 0, 1)
    options = dist.ProcessGroupGloo._Options()
    options._timeout, options._devices = (
        timedelta(seconds=10),
        [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")],
    )
    backend: Any = dist.ProcessGroupGloo(store, 0, 1, options)
    inner._set_default_backend(kind)
    inner._register_backend(torch.device("cpu"), kind, backend)
    traced = TracedGroup(inner)
    yield traced
    traced.close()


def trainer_of(group: dist.ProcessGroup, *, reducer: str = "bucketed", codec: str = "none") -> Trainer:
    plan = Plan(
        batch=BatchPlan(samples=(WORKLOAD.global_batch,)),
        comm=CommPlan(reducer=reducer, bucket_bytes=BUCKET_BYTES),
        compression=CompressionPlan(codec=codec),
    )
    trainer = Trainer(WORKLOAD, plan, group, CONTEXT, seed=0)
    trainer.step()
    return trainer


def gradient_bytes(trainer: Trainer) -> int:
    return sum(p.nbytes for p in trainer.model.parameters() if p.requires_grad)


def test_phases_and_buckets_are_ranges_with_their_bytes(group: dist.ProcessGroup) -> None:
    """bf16 halves what is sent; encoding and decoding count the gradient's own bytes."""
    trainer = trainer_of(group, codec="bf16")
    step, timeline = traced_step(trainer, CLOCK, with_ops=True)
    found = [span for span in timeline.spans if span.kind == "range"]
    assert [span.op for span in found if span.op in ranges.PHASES] == list(ranges.PHASES)
    sent = [span for span in timeline.spans if span.kind == "comm"]
    assert len(sent) > 1
    for what, share in (("encode", 1), ("post", 2), ("wait for", 2), ("decode", 1)):
        parts = [span for span in found if span.op.startswith(what)]
        assert [span.op for span in parts] == [f"{what} {one.op}" for one in sent]
        assert sum(span.num_bytes for span in parts) * share == gradient_bytes(trainer)
    begin_s, end_s = step.begin_s - CLOCK.ahead_s, step.end_s - CLOCK.ahead_s
    assert all(begin_s <= span.start_s <= span.end_s <= end_s for span in timeline.spans)
    trainer.close()


def test_ranges_and_ops_explain_a_step_and_change_nothing_in_its_breakdown(group: dist.ProcessGroup) -> None:
    trainer = trainer_of(group)
    step, timeline = traced_step(trainer, CLOCK, with_ops=True)
    assert {span.kind for span in timeline.spans if span.track == "ops"} >= {"forward op", "backward op"}
    assert break_down(timeline) == break_down(tracing.aligned(step.timeline(0), CLOCK))
    trainer.close()


def test_ddps_own_range_hides_no_op_of_forward(group: dist.ProcessGroup) -> None:
    trainer = trainer_of(group, reducer="ddp")
    _, timeline = traced_step(trainer, CLOCK, with_ops=True)
    assert any(span.kind == "forward op" and "linear" in span.op for span in timeline.spans)
    assert any("DistributedDataParallel.forward" in span.op for span in timeline.spans if span.kind == "other range")
    trainer.close()


def test_a_step_that_is_not_profiled_enters_no_range(group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise AssertionError("a range was entered")

    trainer = trainer_of(group)
    monkeypatch.setattr(ranges, "record_function", fail)
    _, timeline = traced_step(trainer, CLOCK)
    assert {span.track for span in timeline.spans} == {"host", "compute", "comm"}
    trainer.close()


def test_spans_that_are_mostly_of_the_step_are_cut_at_its_ends() -> None:
    step = Step(
        begin_s=10.0,
        data_s=10.0,
        forward_s=11.0,
        backward_s=12.0,
        reduced_s=12.0,
        end_s=13.0,
        loss_share=0.0,
        num_samples=1,
        late_s=0.0,
    )
    moments = {"before": (8.0, 10.1), "first": (9.9, 11.0), "last": (12.0, 13.5), "after": (12.9, 14.0)}
    spans = [Span(rank=0, track="ops", kind="op", op=op, start_s=a, end_s=b) for op, (a, b) in moments.items()]
    assert [(span.op, span.start_s, span.end_s) for span in within(step, spans)] == [
        ("first", 10.0, 11.0),
        ("last", 12.0, 13.0),
    ]


# --- what is watched ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hip", "asked"), [(None, ("nvidia", "0d47d4ab-62a5")), ("6.4.0", ("amd", "0000:c3:00.0"))], ids=["nvidia", "amd"]
)
def test_a_gpu_is_watched_by_the_driver_it_has(
    hip: str | None, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def opener(vendor: str) -> Any:
        def open_gpu(name: str) -> Unavailable:
            seen.append((vendor, name))
            return Unavailable(name=name, units={"gpu_power": "W"}, reason="made up")

        return open_gpu

    properties = SimpleNamespace(uuid="0d47d4ab-62a5", pci_domain_id=0, pci_bus_id=0xC3, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(tracing, "open_nvml", opener("nvidia"))
    monkeypatch.setattr(tracing, "open_amd", opener("amd"))
    rank_context = RankContext(rank=1, device=Device(name="gpu"), torch_device=torch.device("cuda", 0))
    host, gpu = samplers_for(rank_context)
    assert seen == [asked]
    assert "process_cpu" in {metric.name for metric in host.metrics}
    assert gpu.metrics[0].availability == "unavailable (made up)"


@pytest.mark.parametrize("first", [True, False])
def test_the_host_as_a_whole_is_watched_by_its_first_rank_alone(first: bool) -> None:
    rank_context = RankContext(
        rank=1, device=Device(name="cpu"), torch_device=torch.device("cpu"), is_first_of_host=first
    )
    (host,) = samplers_for(rank_context)
    assert ("host_cpu" in {metric.name for metric in host.metrics}) is first
