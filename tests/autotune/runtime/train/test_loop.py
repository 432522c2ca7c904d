"""The workload's own loop: accumulation, clipping and autocast train what one process trains on the whole batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.profilers.timeline import Timeline
from autotune.runtime.emulate import device_pacer
from autotune.runtime.placed.plan_job import plan_job
from autotune.runtime.train.step import Step
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.simulate.roofline import compute_s
from autotune.workloads.capture import capture
from autotune.workloads.cluster import Device, load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan
from autotune.workloads.workload import Loop
from tests.autotune.runtime.emulate.test_device_pacer import SLACK_S, FakeTime
from tests.gloo_ranks import on_ranks, rank_network

BATCH, SAMPLES, STEPS, SEED = 12, 31, 7, 4
REDUCERS = {
    "bucketed": CommPlan(bucket_bytes=512),
    "scheduled": CommPlan(reducer="scheduled", partition_bytes=256),
    "cross-step": CommPlan(reducer="scheduled", partition_bytes=256, crosses_steps=True),
    "ddp": CommPlan(reducer="ddp", bucket_bytes=512),
}
SPLITS = [(12,), (7, 5), (12, 0), (1, 11), (5, 0, 7), (1, 1, 10)]


def with_values(model: nn.Module) -> nn.Module:
    """Ranks are threads that share torch's generator: the model draws from one of its own."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4, generator=generator)
    return model


class Small:
    """A regression whose last step of an epoch is short."""

    name, global_batch, min_samples = "small", BATCH, 1

    def __init__(self, *, dtype: torch.dtype = torch.float64, lr: float = 0.3, **loop: Any) -> None:
        self.dtype, self.lr = dtype, lr
        self.__dict__ |= loop

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))
        return with_values(model).to(self.dtype)

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=self.dtype)
        return TensorDataset(inputs, torch.randn(SAMPLES, 2, generator=generator, dtype=self.dtype))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)


class Normed(Small):
    """BatchNorm over the samples of all ranks."""

    sync_norm = True

    def model(self) -> nn.Module:
        return with_values(nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 2))).to(self.dtype)


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def rank_context(rank: int, **changes: Any) -> RankContext:
    given = {"device": load_cluster("this-machine").devices[0], "torch_device": torch.device("cpu")} | changes
    given["network"] = rank_network()
    return RankContext(rank=rank, **given)


def plan_of(samples: tuple[int, ...], reducer: str) -> Plan:
    """DDP refuses a rank without samples: with DDP it gets one from another rank."""
    if reducer == "ddp" and 0 in samples:
        most = samples.index(max(samples))
        samples = tuple(count - samples.count(0) * (rank == most) or 1 for rank, count in enumerate(samples))
    return Plan(batch=BatchPlan(samples=samples), comm=REDUCERS[reducer])


KEPT: list[dist.ProcessGroup] = []
"""Groups that recorded collectives, kept alive: a gloo thread that makes the last record must not destroy its group."""


def trained(workload: Any, plan: Plan, *, traced: bool = False) -> list[tuple[Tensor, list[Step]]]:
    """The parameters on each rank, and its steps."""

    def run(plain: dist.ProcessGroup) -> Any:
        group = plain
        if traced:
            group = TracedGroup(plain)
            KEPT.append(plain)
        norm_group = group if hasattr(workload, "sync_norm") else None
        trainer = Trainer(workload, plan, group, rank_context(group.rank()), seed=SEED, norm_group=norm_group)
        trainer.record_collectives(on=True)
        steps = [trainer.step() for _ in range(STEPS)]
        trainer.flush()
        found = values(trainer.model)
        trainer.close()
        return found, steps

    ranks = on_ranks(len(plan.batch.samples), run)
    for found in ranks:
        if isinstance(found, Exception):
            raise found
    return ranks


def chunks() -> list[Tensor]:
    """The samples of each step."""
    found: list[Tensor] = []
    for epoch in range(STEPS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED * 1_000_003 + epoch))
        found += order.split(BATCH)
    return found[:STEPS]


def whole_batch(workload: Any, *, clip_norm: float | None = None) -> tuple[Tensor, list[float], list[float]]:
    """Plain torch in one process: parameters, and the losses and gradient norms of its steps."""
    model, data = workload.model(), workload.dataset()
    optimizer, losses, norms = workload.optimizer(model), [], []
    for chunk in chunks():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=getattr(workload, "autocast", None) is not None):
            loss = workload.loss(model, data[chunk])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm or float("inf"))))
        losses.append(float(loss.detach()))
        optimizer.step()
    return values(model), losses, norms


@pytest.mark.parametrize("samples", SPLITS)
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("accumulate", [3, 5])
def test_accumulated_training_is_training_on_the_whole_batch(
    accumulate: int, reducer: str, samples: tuple[int, ...]
) -> None:
    workload = Small(accumulate=accumulate)
    ranks = trained(workload, plan_of(samples, reducer))
    expected, losses, _ = whole_batch(workload)
    for found, _ in ranks:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    for number, chunk in enumerate(chunks()):
        steps = [steps[number] for _, steps in ranks]
        assert sum(step.loss_share for step in steps) == pytest.approx(losses[number], rel=1e-12)
        assert sum(step.num_samples for step in steps) == sum(step.work for step in steps) == len(chunk)
        for step in steps:
            assert len(step.passes) + 1 == max(min(accumulate, step.num_samples), 1)


@pytest.mark.parametrize("reducer", ["bucketed", "scheduled", "ddp"])
def test_gradients_are_exchanged_in_the_last_pass_only(reducer: str) -> None:
    """The same exchanges as in one pass, none of them before the last pass had its loss."""
    plan = plan_of((7, 5), reducer)
    once, often = (trained(workload, plan, traced=True) for workload in (Small(), Small(accumulate=4)))
    sent = [[len(step.sent.deliveries) for step in steps] for _, steps in (once[0], often[0])]
    assert sum(sent[0]) > STEPS
    assert sent[0] == sent[1]
    for step in often[0][1]:
        assert all(delivery.posted_s >= step.forward_s for delivery in step.sent.deliveries)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_factors_are_the_rows_of_all_passes(accumulate: int) -> None:
    workload = Small(accumulate=accumulate)
    comm = CommPlan(reducer="scheduled", partition_bytes=256)
    plan = Plan(batch=BatchPlan(samples=(7, 5)), comm=comm, compression=CompressionPlan(factors=("0", "2")))
    for found, steps in trained(workload, plan):
        torch.testing.assert_close(found, whole_batch(workload)[0], rtol=1e-12, atol=1e-13)
        sizes = {delivery.num_bytes for step in steps for delivery in step.sent.deliveries}
        assert {8 * rows * (9 + 6) for rows in (12, 7)} | {8 * rows * (9 + 9) for rows in (12, 7)} <= sizes


@pytest.mark.parametrize("reducer", ["bucketed", "ddp"])
@pytest.mark.parametrize("samples", [(7, 5), (2, 10), (12, 0), (5, 0, 7)])
def test_norms_over_all_ranks_take_the_micro_batches_of_all_ranks(samples: tuple[int, ...], reducer: str) -> None:
    """Ranks with fewer passes join in the last ones."""
    workload, loop = Normed(accumulate=3), Loop(accumulate=3)
    found = trained(workload, plan_of(samples, reducer))
    model, data = workload.model(), workload.dataset()
    optimizer = workload.optimizer(model)
    for number, chunk in enumerate(chunks()):
        optimizer.zero_grad()
        shares = chunk.split([steps[number].num_samples for _, steps in found])
        cut = [list(share.split(list(loop.passes(len(share))))) for share in shares]
        for place in range(-max(map(len, cut)), 0):
            together = torch.cat([slices[place] for slices in cut if len(slices) >= -place])
            (workload.loss(model, data[together]) * len(together) / len(chunk)).backward()
        optimizer.step()
    for ours, _ in found:
        torch.testing.assert_close(ours, values(model), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_gradient_of_the_whole_batch_is_clipped(reducer: str, accumulate: int) -> None:
    workload = Small(clip_norm=0.3, accumulate=accumulate)
    expected, _, norms = whole_batch(workload, clip_norm=0.3)
    assert min(norms) > 0.3
    plans = [plan_of((7, 0, 5), reducer)]
    if reducer == "scheduled":
        plans.append(replace(plans[0], compression=CompressionPlan(factors=("0", "2"))))
    for plan in plans:
        for found, _ in trained(workload, plan):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_cross_step_overlap_is_exact_where_only_later_steps_are_clipped() -> None:
    """A first step without clipping does not show that later ones need all gradients at once."""
    norms = whole_batch(Small(lr=0.9))[2]
    clip_norm = norms[0] * 1.01
    assert max(norms[1:]) > clip_norm
    workload = Small(lr=0.9, clip_norm=clip_norm)
    expected, _, _ = whole_batch(workload, clip_norm=clip_norm)
    for found, _ in trained(workload, plan_of((7, 5), "cross-step")):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


class Watched(Small):
    """Records the dtypes of its last layer's inputs."""

    def __init__(self, **given: Any) -> None:
        super().__init__(dtype=torch.float32, **given)
        self.seen: set[torch.dtype] = set()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        self.seen.add(outputs.dtype)
        return nn.functional.mse_loss(outputs, batch[1])


@pytest.mark.parametrize("reducer", REDUCERS)
def test_the_loss_under_autocast_is_trained(reducer: str) -> None:
    workload = Watched(autocast="bfloat16", accumulate=2)
    ranks = trained(workload, plan_of((7, 5), reducer))
    assert workload.seen == {torch.bfloat16}
    expected, plain = whole_batch(workload)[0], whole_batch(Watched())[0]
    for found, _ in ranks:
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.02)
        assert float((found - plain).abs().max()) > 1e-5


def test_factors_under_autocast_are_those_it_computes_with() -> None:
    workload = Watched(autocast="bfloat16", accumulate=2)
    factors = CompressionPlan(factors=("0", "2"))
    for found, _ in trained(workload, replace(plan_of((7, 5), "scheduled"), compression=factors)):
        torch.testing.assert_close(found, whole_batch(workload)[0], rtol=0.0, atol=0.02)
        assert float((found - whole_batch(Watched())[0]).abs().max()) > 1e-5


@pytest.mark.parametrize("loop", [{"accumulate": 2}, {"clip_norm": 1.0}, {"autocast": "bfloat16"}])
def test_stages_are_refused(loop: dict[str, Any]) -> None:
    workload = Small(**loop)
    model, data = workload.model(), workload.dataset()
    graph = capture(model, lambda count: workload.loss(model, data[torch.arange(count)]))
    stages = PipelinePlan(first_ops=(0,), stage_ranks=((0,),), micro_batches=2)
    with pytest.raises(SpecError, match=f"{next(iter(loop))} = .*use a plan without stages"):
        plan_job(workload, Plan(batch=BatchPlan(samples=(12,)), pipeline=stages), graph)


def test_an_emulated_device_takes_its_time_for_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 samples in passes of 3, 3, 2, 2 and 2, each with its launches."""
    workload = Small(accumulate=5, dtype=torch.float32)
    model, data = workload.model(), workload.dataset()
    graph = capture(model, lambda count: workload.loss(model, data[torch.arange(count)]))
    device = Device(name="slow", flops_per_s=1e5, launch_s=0.001)
    clock = FakeTime()
    monkeypatch.setattr(device_pacer, "time", clock)

    def run(group: dist.ProcessGroup) -> None:
        trainer = Trainer(workload, plan, group, rank_context(0, device=device, graph=graph), seed=SEED)
        trainer.step()
        trainer.close()

    plan = Plan(batch=BatchPlan(samples=(12,)))
    assert on_ranks(1, run) == [None]
    expected = sum(compute_s(graph, device, count) for count in (3, 3, 2, 2, 2))
    assert sum(clock.naps) == pytest.approx(expected, abs=SLACK_S)
    assert expected > compute_s(graph, device, 12) + 4 * 0.001


def test_a_traced_step_shows_its_passes_one_after_another() -> None:
    ((_, steps),) = trained(Small(accumulate=3), Plan(batch=BatchPlan(samples=(12,))))
    timeline: Timeline = steps[0].timeline(0)
    shown = [span for span in timeline.spans if span.track != "comm"]
    shown.sort(key=lambda span: (span.start_s, span.end_s))
    assert [span.kind for span in shown if span.track == "compute"] == [*["forward", "backward"] * 3, "optimizer"]
    assert all(before.end_s <= after.start_s for before, after in pairwise(shown))
