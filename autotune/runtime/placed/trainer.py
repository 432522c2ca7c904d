"""Pipelined training of a workload by a timetable: the same samples, in the same order, as training on one device.

Every rank initializes the whole model from the seed, keeps the modules that it runs, and has an optimizer for those. For
optimizers that treat each parameter separately, the update equals that of the whole model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.data.batches import batches_of
from autotune.runtime.device import handle
from autotune.runtime.emulate.block_pacer import BlockPacer
from autotune.runtime.placed.batch_cut import BatchCut, even_cut, for_samples
from autotune.runtime.placed.executor import Executor
from autotune.runtime.placed.pipeline_step import PipelineStep
from autotune.runtime.placed.stages import Assembly
from autotune.runtime.train.memory import check_memory, static_bytes
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.blocks import Timetable
from autotune.workloads.capture import SavedTensorMeter
from autotune.workloads.errors import SpecError
from autotune.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineJob:
    """Workload, parts and order of a pipelined job; the same on all ranks."""

    workload: Workload
    assemble: Callable[[nn.Module], Assembly]
    """The model's parts (`autotune.runtime.placed.stages`); with their ops where devices are emulated."""
    table: Timetable
    samples: tuple[tuple[int, ...], ...] = ()
    """Per lane: samples of each micro-batch. Empty: as equal as possible."""


class PipelineTrainer:
    """One rank of a pipelined job."""

    def __init__(self, job: PipelineJob, group: dist.ProcessGroup, rank_context: RankContext, *, seed: int) -> None:
        self.rank_context, self.job = rank_context, job
        self._device = handle(rank_context.torch_device)
        torch.manual_seed(seed)
        assembly = job.assemble(job.workload.model())
        torch.manual_seed(seed + 1 + rank_context.rank)  # as in data-parallel training: dropout differs between ranks
        program = assembly.program(job.table.graph)
        modules = {
            name: module.to(rank_context.torch_device)
            for name, module in assembly.modules(program, rank_context.rank).items()
        }
        self.pacer: BlockPacer | None = None
        if rank_context.device.flops_per_s is not None and any(assembly.ops.values()):
            num_shards = {name: len(devices) for name, devices in program.devices.items()}
            self.pacer = BlockPacer(rank_context.device, assembly.ops, num_shards)
        self.executor = Executor(
            program,
            job.table,
            modules,
            group,
            timeout_s=rank_context.timeout_s,
            device=rank_context.torch_device,
            pacer=self.pacer,
        )
        self.model = self.executor.model
        self.optimizer = job.workload.optimizer(self.model) if list(self.model.parameters()) else None
        total = job.workload.global_batch
        even = even_cut(total, job.table.num_microbatches, program.num_lanes)
        self._cut = BatchCut(samples=job.samples) if job.samples else even
        self._batches = batches_of(job.workload, (total,), 0, seed=seed)
        weights = getattr(job.workload, "loss_weights", None)
        self._loss_weights = None if weights is None else torch.as_tensor(weights(job.workload.dataset()))
        self.num_steps = 0
        self.peak_memory_bytes = 0

    def step(self) -> PipelineStep:
        """Train on the next global batch."""
        return self._step(nullcontext)

    def metered_step(self) -> PipelineStep:
        """A step that also meters memory and raises InfeasiblePlanError where the device's memory is exceeded; not for scoring."""
        meter = SavedTensorMeter(self.model)
        self._device.reset_peak()
        step = self._step(meter.watch)
        held = 0
        if self.optimizer is not None:
            held = static_bytes(self.model, self.optimizer, buffer_bytes=self.executor.buffer_bytes)
        self.peak_memory_bytes = self._device.peak_bytes(held + meter.peak_bytes)
        check_memory(self.peak_memory_bytes, self.rank_context.device, self.rank_context.rank, self._cut.total)
        return step

    def close(self) -> None:
        """Release the group."""
        self._batches.close()
        self.executor.close()

    def _step(self, watch: Callable[[], AbstractContextManager[None]]) -> PipelineStep:
        self._device.renew_clock()
        begin_s = time.perf_counter()
        batch, cut = self._batch()
        step = self.executor.step(batch, cut, watch=watch)
        if self.optimizer is not None:
            self.optimizer.step()
        self.num_steps += 1
        return replace(step, begin_s=begin_s, end_s=self._device.stamp().seconds)

    def _batch(self) -> tuple[tuple[Tensor, ...], BatchCut]:
        batch, _, _ = self._batches.take(self.num_steps)
        if not isinstance(batch, tuple | list) or not all(isinstance(one, Tensor) for one in batch):
            raise SpecError(
                f"a batch of {self.job.workload.name!r} is a {type(batch).__name__}: pipelines cut batches that are tuples of "
                "tensors with a row for each sample"
            )
        cut, rows = for_samples(self._cut, len(batch[0]))
        if cut is not self._cut:
            batch = [one[rows] for one in batch]
        return tuple(batch), cut if self._loss_weights is None else self._weighted(cut, rows, self._loss_weights)

    def _weighted(self, cut: BatchCut, rows: list[int], loss_weights: Tensor) -> BatchCut:
        """The cut, with the weights of its micro-batches' losses in this step."""
        counts = loss_weights[self._batches.indices(self.num_steps)[0]]
        total, counts = counts.sum(), counts[rows]

        def share(lane: int, number: int) -> float:
            counted = not cut.weights or cut.weights[lane][number] > 0
            return float(counts[cut.rows(lane, number)].sum() / total) if counted else 0.0

        table = tuple(tuple(share(lane, number) for number in range(len(one))) for lane, one in enumerate(cut.samples))
        return BatchCut(samples=cut.samples, weights=table)
