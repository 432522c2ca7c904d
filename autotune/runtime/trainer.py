"""Data-parallel training by a plan: uneven batches, exactly weighted gradients, buckets, codecs; or torch DDP.

A rank's loss is a mean over its own samples. Weighted by b_i/B before backward, the sum over ranks is the gradient of
the mean over the whole batch, whatever the split. DDP divides by the number of ranks N, so there the weight is N·b_i/B.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from autotune.runtime.codec import make_codec
from autotune.runtime.data import Batches
from autotune.runtime.device_pacer import DevicePacer
from autotune.runtime.memory import check_memory, static_bytes
from autotune.runtime.reducer import BucketReducer
from profilers.timeline import Span, Timeline
from workloads.capture import SavedTensorMeter
from workloads.cluster import Device
from workloads.graph import OpGraph
from workloads.plan import MIB, Plan
from workloads.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where a trainer sits: its rank, the device it has or emulates, and where its tensors live."""

    rank: int
    device: Device
    torch_device: torch.device
    graph: OpGraph | None = None
    """Costs of the model, given when the device is emulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One training step of one rank; moments on the performance counter."""

    begin_s: float
    data_s: float
    """Moment the batch was there."""
    forward_s: float
    """Moment the loss was there."""
    backward_s: float
    """Moment the last gradient of this rank was there."""
    reduced_s: float
    """Moment the last gradient summed over all ranks was there."""
    end_s: float
    loss_share: float
    """This rank's loss times its share of the batch: the sum over ranks is the loss of the whole batch."""
    num_samples: int
    late_s: float

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def wait_s(self) -> float:
        return self.reduced_s - self.backward_s

    @property
    def compute_s(self) -> float:
        return self.total_s - self.wait_s

    def timeline(self, rank: int) -> Timeline:
        """The step as spans, on the clock it was measured with."""
        moments = [
            ("host", "data", self.begin_s, self.data_s),
            ("compute", "forward", self.data_s, self.forward_s),
            ("compute", "backward", self.forward_s, self.backward_s),
            ("host", "wait", self.backward_s, self.reduced_s),
            ("compute", "optimizer", self.reduced_s, self.end_s),
        ]
        return Timeline(
            spans=tuple(
                Span(rank=rank, lane=lane, kind=kind, op=kind, start_s=a, end_s=b) for lane, kind, a, b in moments
            )
        )


class Trainer:
    """One rank of a job that trains `workload` as `plan` says."""

    def __init__(self, workload: Workload, plan: Plan, group: dist.ProcessGroup, seat: Seat, *, seed: int) -> None:
        self.plan, self.seat = plan, seat
        self._workload = workload
        self.group = group
        torch.manual_seed(seed)
        self.model = workload.model().to(seat.torch_device)
        self.optimizer = workload.optimizer(self.model)
        self.batches = Batches(workload.dataset(), plan.batch.samples, seat.rank, seed=seed)
        self._pacer = DevicePacer(self.model, seat.graph, seat.device) if seat.graph is not None else None
        self._gradient_s = 0.0
        self._handles = [p.register_hook(self._note_gradient) for p in self.model.parameters() if p.requires_grad]
        self._ddp: DistributedDataParallel | None = None
        self._reducer: BucketReducer | None = None
        if plan.comm.reducer == "ddp":
            self._ddp = DistributedDataParallel(
                self.model, process_group=group, bucket_cap_mb=plan.comm.bucket_bytes / MIB
            )
            if plan.compression.codec == "fp16":
                self._ddp.register_comm_hook(group, fp16_compress_hook)
        else:
            self._reducer = BucketReducer(self.model, plan.comm.bucket_bytes, make_codec(plan.compression.codec), group)
        self.num_steps = 0
        self.peak_memory_bytes = 0

    def step(self) -> Step:
        """Train on the next global batch."""
        begin_s = time.perf_counter()
        batch, num_samples, total = self.batches.take(self.num_steps)
        batch = _to_device(batch, self.seat.torch_device)
        data_s = time.perf_counter()
        if self._pacer is not None:
            self._pacer.begin(num_samples)
        forward_s, loss = self._gradients(batch, num_samples, total)
        late_s = self._pacer.late_s if self._pacer is not None else 0.0
        reduced_s = time.perf_counter()
        self.optimizer.step()
        self.num_steps += 1
        return Step(
            begin_s=begin_s,
            data_s=data_s,
            forward_s=forward_s,
            backward_s=min(max(self._gradient_s, forward_s), reduced_s),
            reduced_s=reduced_s,
            end_s=time.perf_counter(),
            loss_share=loss * num_samples / total,
            num_samples=num_samples,
            late_s=late_s,
        )

    def metered_step(self) -> Step:
        """A step that also meters memory and raises InfeasiblePlanError where the device could not hold it; not for scoring."""
        meter = SavedTensorMeter(self.model)
        with meter.watch():
            step = self.step()
        copies = 2 if self._ddp is not None else 1
        wire = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad) * (copies - 1)
        self.peak_memory_bytes = static_bytes(self.model, self.optimizer, bucket_bytes=wire) + meter.peak_bytes
        if self.seat.torch_device.type == "cuda":
            self.peak_memory_bytes = int(torch.cuda.max_memory_allocated(self.seat.torch_device))
        check_memory(self.peak_memory_bytes, self.seat.device, self.seat.rank, step.num_samples)
        return step

    def close(self) -> None:
        """Let go of the group: as long as anything holds it, peers do not learn that this rank has left."""
        for handle in self._handles:
            handle.remove()
        if self._pacer is not None:
            self._pacer.detach()
        if self._reducer is not None:
            self._reducer.detach()
        self._ddp = self._reducer = None
        del self.group

    def _gradients(self, batch: Any, num_samples: int, total: int) -> tuple[float, float]:
        """Leave the exact gradient of the whole batch in the model; the moment forward ended, and this rank's loss."""
        weight = num_samples / total
        if self._ddp is not None:
            self.optimizer.zero_grad()
            if (
                batch is None
            ):  # DDP's hooks need a backward on every rank; a short last batch may leave none for this one
                batch = _to_device(self.batches.fetch(torch.tensor([0])), self.seat.torch_device)
            return self._backward(self._ddp, batch, weight * self.group.size())
        assert self._reducer is not None
        self._reducer.begin()
        done = self._backward(self.model, batch, weight) if num_samples else (time.perf_counter(), 0.0)
        self._reducer.finish()
        return done

    def _backward(self, model: nn.Module, batch: Any, weight: float) -> tuple[float, float]:
        loss = self._workload.loss(model, batch)
        if self._pacer is not None:
            self._pacer.after_loss()
        forward_s = time.perf_counter()
        (loss * weight).backward()
        if self.seat.torch_device.type == "cuda":
            torch.cuda.synchronize(self.seat.torch_device)
        return forward_s, float(loss.detach())

    def _note_gradient(self, _gradient: Any) -> None:
        self._gradient_s = time.perf_counter()


def _to_device(batch: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return batch
    return torch.utils._pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)
