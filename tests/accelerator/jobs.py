"""Trainers of plans on thread ranks: each with a fake device, or on the CPU, over the same groups as in a job."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
from autotune.runtime.device import handle
from autotune.runtime.train.trainer import RankContext, Trainer, needs_norm_group
from autotune.runtime.transport.accelerator_group import AcceleratorGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.plan import Plan
from autotune.workloads.registry import load_workload
from tests.accelerator import devices, races, streams, timeline
from tests.accelerator.models import Encoder
from tests.accelerator.nccl import FakeNccl
from tests.gloo_ranks import gloo_group, on_networks, rank_network

SEED = 3
STAGED, NCCL = "staged", "fake-nccl"
"""How gradients of fake devices travel."""


class EncoderJob:
    """A Hugging-Face-style encoder that classifies sequences of words."""

    name, global_batch, min_samples, num_workers, collate = "encoder", 12, 1, 0, None

    def model(self) -> nn.Module:
        return Encoder(layers=1).double()

    def dataset(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(1, 50, (96, 6), generator=generator)
        words[::3, 4:] = 0
        return TensorDataset(words, torch.randint(0, 4, (96,), generator=generator))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)


class Built:
    """A workload whose model is built once: threads share torch's random numbers."""

    def __init__(self, inner: Any) -> None:
        torch.manual_seed(SEED)
        self._inner, self._model = inner, inner.model()

    def model(self) -> nn.Module:
        return copy.deepcopy(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def workload(name: str) -> Any:
    """A small workload in float64."""
    return Built(EncoderJob() if name == "encoder" else load_workload(name, {"size": "tiny", "dtype": "float64"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a rank has after training."""

    values: Tensor
    losses: tuple[float, ...]
    steps: tuple[Any, ...]


def cpu_ranks(job: Any, plan: Plan, num_steps: int) -> list[Trained]:
    """Train on CPUs over gloo."""
    return _checked(_on_threads(plan, lambda rank, store: _train_cpu(job, plan, num_steps, rank, store)))


def device_ranks(  # noqa: PLR0913 - what a job may be
    job: Any,
    plan: Plan,
    num_steps: int,
    *,
    over: str = STAGED,
    on_cpu: Sequence[int] = (),
    slowness: Sequence[float] = (),
) -> list[Trained]:
    """Train on fake devices; ranks of `on_cpu` take the CPU. `slowness`: of the devices."""
    size = len(plan.batch.samples)
    before = devices.count()
    devices.set_count(max(size, before))
    for index, factor in enumerate(slowness):
        devices.configure(index, slowness=factor)
    try:
        return _checked(
            _on_threads(
                plan, lambda rank, store: _train_device(job, plan, num_steps, rank, store, over, rank in on_cpu)
            )
        )
    finally:
        devices.set_count(before)
        races.forget()
        timeline.reset()


def away(one: Sequence[Trained], other: Sequence[Trained]) -> float:
    """The largest distance between ranks' parameters and losses, relative to the parameters' norm."""
    apart = [float((a.values - b.values).norm() / b.values.norm()) for a, b in zip(one, other, strict=True)]
    losses = [
        [sum(rank.losses[step] for rank in ranks) for step in range(len(one[0].losses))] for ranks in (one, other)
    ]
    return max(*apart, *(abs(a - b) for a, b in zip(*losses, strict=True)))


def this_machine() -> Cluster:
    return load_cluster("this-machine")


def _on_threads(plan: Plan, run: Callable[[int, Any], Any]) -> list[Any]:
    store = dist.HashStore()
    return on_networks(len(plan.batch.samples), lambda network: run(network.rank, store))


def _checked(results: list[Any]) -> list[Trained]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _train_cpu(job: Any, plan: Plan, num_steps: int, rank: int, store: Any) -> Trained:
    context = _context(rank, torch.device("cpu"))
    size = len(plan.batch.samples)
    names = ("data", "norms")
    groups = [gloo_group(dist.PrefixStore(name, store), rank, size) for name in names]
    return _train(job, plan, num_steps, context, groups)


def _train_device(job: Any, plan: Plan, num_steps: int, rank: int, store: Any, over: str, is_cpu: bool) -> Trained:  # noqa: PLR0913, PLR0917
    size = len(plan.batch.samples)
    torch_device = torch.device("cpu") if is_cpu else torch.device(streams.NAME, rank)
    handle(torch_device).bind()
    context = replace(_context(rank, torch_device), on_accelerators=True)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(_group(over, store, name, rank, size, torch_device)) for name in ("data", "norms")
        ]
        return _train(job, plan, num_steps, context, groups)


@contextmanager
def _group(over: str, store: Any, name: str, rank: int, size: int, device: torch.device) -> Iterator[Any]:  # noqa: PLR0913, PLR0917
    gloo = gloo_group(dist.PrefixStore(f"{name}-gloo", store), rank, size)
    if device.type == "cpu":
        yield gloo
        return
    staged = StagedGroup(gloo, handle(device))
    if over == STAGED:
        try:
            yield staged
        finally:
            staged.close()
        return
    fake = FakeNccl(dist.PrefixStore(name, store), rank, size, timedelta(seconds=20))
    both = AcceleratorGroup(fake, staged)
    failed = True
    try:
        yield both
        failed = False
    finally:
        both.close(failed=failed)


def _context(rank: int, torch_device: torch.device) -> RankContext:
    return RankContext(
        rank=rank, device=this_machine().devices[0], torch_device=torch_device, timeout_s=60.0, network=rank_network()
    )


def _train(job: Any, plan: Plan, num_steps: int, context: RankContext, groups: list[Any]) -> Trained:
    norms = groups[1] if needs_norm_group(job, plan) else None
    trainer = Trainer(job, plan, groups[0], context, seed=SEED, norm_group=norms)
    try:
        steps = tuple(trainer.step() for _ in range(num_steps))
        trainer.flush()
        values = torch.cat([p.detach().to("cpu").reshape(-1) for p in trainer.model.parameters()])
    except Exception as error:
        trainer.close(error)
        raise
    trainer.close()
    return Trained(values=values, losses=tuple(step.loss_share for step in steps), steps=steps)
