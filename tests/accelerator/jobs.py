"""Trainers of plans on thread ranks: each with a fake device, or on the CPU, over the same groups as in a job."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
from autotune.runtime.device import handle
from autotune.runtime.errors import PeerLostError
from autotune.runtime.train.trainer import RankContext, Trainer, needs_norm_group
from autotune.runtime.transport.accelerator_group import AcceleratorGroup
from autotune.runtime.transport.collective_groups import WrapGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.workloads.cluster import Cluster, Device, Host, load_cluster
from autotune.workloads.plan import COLLECTIVES, Plan
from autotune.workloads.plan.choices import load
from autotune.workloads.registry import load_workload
from tests.accelerator import devices, races, streams, timeline
from tests.accelerator.counts import counts
from tests.accelerator.nccl import FakeNccl
from tests.accelerator.transformer import MaskedWordsJob
from tests.gloo_ranks import gloo_group, on_networks, rank_network

SEED = 3
STAGED, NCCL, QUEUES = "staged", "fake-nccl", "queues"
"""How tensors of fake devices travel; with QUEUES messages do not leave the fake NCCL, as they do in jobs."""
SHARDS, SERVER = "shards", "server"
"""Staged, by owner shards and by a parameter server; also on CPUs."""
OWNED = {SHARDS: (0.75, 0.25), SERVER: (0.0, 1.0)}
"""What each of two ranks owns."""
IN_HOSTS = ("hierarchical", "hierarchical-shards")
"""Summed within each half of the ranks first."""


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
    job: Any = MaskedWordsJob() if name == "transformer" else None
    return Built(job or load_workload(name, {"size": "tiny", "dtype": "float64"}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a rank has after training."""

    values: Tensor
    losses: tuple[float, ...]
    steps: tuple[Any, ...]


class Queues(AcceleratorGroup):
    """Messages, too, go through NCCL's one queue per pair of ranks."""

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._real.send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._real.recv(tensors, srcRank, tag)


def cpu_ranks(job: Any, plan: Plan, num_steps: int, *, over: str = "") -> list[Trained]:
    """Train on CPUs over gloo."""
    return _checked(_on_threads(plan, lambda rank, store: _train_cpu(job, plan, num_steps, rank, store, over)))


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


def waits_per_step(job: Any, plan: Plan, over: str) -> dict[str, float]:
    """How often the host waits for a device in a step of a rank, by thread: the difference between eight steps and four.

    "training": the threads that train, with autograd's; the others by their names.
    """
    found = []
    for num_steps in (4, 8):
        counts.reset()
        device_ranks(job, plan, num_steps, over=over)
        waits: Counter[str] = Counter()
        for (_, thread), number in counts.host_syncs().items():
            is_training = thread == "autograd" or thread.startswith("rank ")
            waits["training" if is_training else thread] += number
        found.append(waits)
    few, many = found
    return {thread: (many[thread] - few[thread]) / 4 / len(plan.batch.samples) for thread in many}


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
    """Raises what has failed first: that a peer is lost is a consequence."""
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLostError)):
        raise error
    return results


def _train_cpu(job: Any, plan: Plan, num_steps: int, rank: int, store: Any, over: str) -> Trained:  # noqa: PLR0913, PLR0917
    context = rank_context(rank, torch.device("cpu"))
    size = len(plan.batch.samples)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(_host_group(over, gloo_group(dist.PrefixStore(name, store), rank, size)))
            for name in ("data", "norms")
        ]
        return _train(job, plan, num_steps, context, groups)


def _train_device(job: Any, plan: Plan, num_steps: int, rank: int, store: Any, over: str, is_cpu: bool) -> Trained:  # noqa: PLR0913, PLR0917
    size = len(plan.batch.samples)
    torch_device = torch.device("cpu") if is_cpu else torch.device(streams.NAME, rank)
    handle(torch_device).bind()
    context = replace(rank_context(rank, torch_device), on_accelerators=True)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(_group(over, store, name, rank, size, torch_device)) for name in ("data", "norms")
        ]
        return _train(job, plan, num_steps, context, groups)


def _two_hosts(num_ranks: int) -> Cluster:
    sizes = (num_ranks // 2, num_ranks - num_ranks // 2)
    hosts = tuple(Host(name=f"host{k}", devices=(Device(name="device"),) * n) for k, n in enumerate(sizes))
    return Cluster(name="two hosts", hosts=hosts)


@contextmanager
def _host_group(over: str, gloo: Any) -> Iterator[Any]:
    """Gloo, or a group that is made of its messages."""
    if over not in (*OWNED, *IN_HOSTS):
        yield gloo
        return
    group = load(COLLECTIVES[over].wrapped_by)(
        WrapGroup(inner=gloo, cluster=_two_hosts(gloo.size()), servers=(1,), shares=OWNED.get(over, ()))
    )
    try:
        yield group
    finally:
        group.close()


@contextmanager
def _group(over: str, store: Any, name: str, rank: int, size: int, device: torch.device) -> Iterator[Any]:  # noqa: PLR0913, PLR0917
    gloo = gloo_group(dist.PrefixStore(f"{name}-gloo", store), rank, size)
    with _host_group(over, gloo) as host:
        if device.type == "cpu":
            yield host
            return
        with ExitStack() as stack:
            staged = StagedGroup(host, handle(device))
            if over in {NCCL, QUEUES}:
                yield stack.enter_context(beside(staged, store, name, is_direct=over == QUEUES))
                return
            stack.callback(staged.close)
            yield staged


@contextmanager
def beside(staged: StagedGroup, store: Any, name: str, *, is_direct: bool) -> Iterator[AcceleratorGroup]:
    """The fake NCCL beside staged messages; `is_direct`: with its own messages."""
    fake = FakeNccl(dist.PrefixStore(name, store), staged.rank(), staged.size(), timedelta(seconds=20))
    both = (Queues if is_direct else AcceleratorGroup)(fake, staged)
    failed = True
    try:
        yield both
        failed = False
    finally:
        both.close(failed=failed)


def rank_context(rank: int, torch_device: torch.device) -> RankContext:
    """The context of the rank that this thread is."""
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
