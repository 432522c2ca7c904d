"""The cost of a workload on this rank's device at several batch sizes: each op, whole steps, peak memory.

Two kinds of pass are interleaved: plain passes as in training, and passes with a ModuleClock on the model. Plain passes give
the cost of a step, the others its division among ops. The difference between the plain pass and the sum of the ops is
recorded beside them. Batch sizes are interleaved as well, so that a disturbance of the machine affects all of them. No rank
waits for another here; all ranks measure at the same time, as they compute at the same time in training.

An emulated device is paced as in training. Debts below a fifth of a millisecond are carried to the next op, so the times of
single small ops of an emulated device are inexact; their sum is exact. The loss's backward is paced with its forward.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch

from autotune.runtime.data.batches import batches_of
from autotune.runtime.data.micro_batches import loss_of
from autotune.runtime.device import handle
from autotune.runtime.emulate.device_pacer import DevicePacer
from autotune.runtime.probe.module_clock import ModuleClock
from autotune.runtime.train.memory import check_memory, static_bytes
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.capture import SavedTensorMeter
from autotune.workloads.workload import Workload, loop_of

_FEWEST_ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainStep:
    """One step without probes."""

    data_s: float
    compute_s: float
    optimizer_s: float
    late_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeSamples:
    """Typical times of one batch size, over the rounds."""

    num_samples: int
    step: PlainStep
    ops_s: dict[str, tuple[float, float]]
    """Forward and backward seconds of each op."""
    peak_memory_bytes: int

    def op_s(self, name: str) -> tuple[float, float]:
        """Zeros for an op without a measurement."""
        return self.ops_s.get(name, (0.0, 0.0))


class OpProbe:
    """The model of one rank on its real or emulated device."""

    def __init__(self, workload: Workload, rank_context: RankContext, *, seed: int) -> None:
        self._workload, self._rank_context = workload, rank_context
        self._device = handle(rank_context.torch_device)
        torch.manual_seed(seed)
        self._model = workload.model().to(rank_context.torch_device)
        self._optimizer = workload.optimizer(self._model)
        self._batches = batches_of(workload, (workload.global_batch,), 0, seed=seed)
        self._pacer = (
            DevicePacer(self._model, rank_context.graph, rank_context.device)
            if rank_context.graph is not None
            else None
        )

    def measure(self, sizes: Sequence[int], *, rounds: int, budget_s: float) -> list[SizeSamples]:
        """`rounds` passes of both kinds at each size; fewer, but at least three, where they exceed `budget_s`."""
        peaks = {size: self.peak_memory_bytes(size) for size in sizes}
        for size in sizes:
            self.plain_step(size)
            self.split_pass(size)
        plain: dict[int, list[PlainStep]] = {size: [] for size in sizes}
        split: dict[int, list[dict[str, tuple[float, float]]]] = {size: [] for size in sizes}
        deadline = time.monotonic() + budget_s
        for number in range(max(rounds, _FEWEST_ROUNDS)):
            if number >= _FEWEST_ROUNDS and time.monotonic() > deadline:
                break
            for size in sizes:
                plain[size].append(self.plain_step(size))
                split[size].append(self.split_pass(size))
        return [
            SizeSamples(
                num_samples=size,
                step=_median_step(plain[size]),
                ops_s=_typical_ops(split[size]),
                peak_memory_bytes=peaks[size],
            )
            for size in sizes
        ]

    def plain_step(self, num_samples: int) -> PlainStep:
        """A training step without communication."""
        begun = self._now()
        batch = self._batch(num_samples)
        fetched = self._now()
        self._forward_backward(batch, num_samples)
        computed = self._now()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return PlainStep(
            data_s=fetched - begun,
            compute_s=computed - fetched,
            optimizer_s=self._now() - computed,
            late_s=self._pacer.late_s if self._pacer is not None else 0.0,
        )

    def split_pass(self, num_samples: int) -> dict[str, tuple[float, float]]:
        """Forward and backward seconds of each op."""
        batch = self._batch(num_samples)
        with ModuleClock(self._model, self._now) as clock:
            clock.begin()
            self._forward_backward(batch, num_samples, clock)
            times = clock.end()
        self._optimizer.zero_grad(set_to_none=False)
        return times

    def peak_memory_bytes(self, num_samples: int) -> int:
        """Peak memory of a step, without communication buffers; InfeasiblePlanError where the device cannot hold it."""
        meter = SavedTensorMeter(self._model)
        self._device.reset_peak()
        with meter.watch():
            self.plain_step(num_samples)
        held = static_bytes(self._model, self._optimizer, buffer_bytes=0)
        peak = self._device.peak_bytes(held + meter.peak_bytes)
        check_memory(peak, self._rank_context.device, self._rank_context.rank, num_samples)
        return peak

    def close(self) -> None:
        if self._pacer is not None:
            self._pacer.detach()

    def _forward_backward(self, batch: Any, num_samples: int, clock: ModuleClock | None = None) -> None:
        if self._pacer is not None:
            self._pacer.begin(num_samples)
        loss = loss_of(self._workload, loop_of(self._workload), self._model, batch, self._rank_context.torch_device)
        if self._pacer is not None:
            self._pacer.after_loss()
        if clock is not None:
            clock.forward_done()
        loss.backward()

    def _batch(self, num_samples: int) -> Any:
        batch = self._batches.fetch(torch.arange(num_samples))
        if not self._device.is_accelerator:
            return batch
        return torch.utils._pytree.tree_map(
            lambda leaf: self._device.to_device(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch
        )

    def _now(self) -> float:
        """The time at which the device reaches this point; waits for it."""
        return self._device.stamp().seconds


def sizes_to_measure(share: int, *, fewest: int, most: int) -> list[int]:
    """A quarter, half, once and twice an even share of the batch, within the limits of the rank."""
    wanted = {max(share // 4, 1), max(share // 2, 1), share, 2 * share}
    return sorted({min(max(size, fewest), most) for size in wanted})


def _median_step(steps: Sequence[PlainStep]) -> PlainStep:
    return PlainStep(
        data_s=median(step.data_s for step in steps),
        compute_s=median(step.compute_s for step in steps),
        optimizer_s=median(step.optimizer_s for step in steps),
        late_s=median(step.late_s for step in steps),
    )


def _typical_ops(passes: Sequence[dict[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Means over the middle third of the passes by their total time. Medians of each op would not sum up, because a pacer
    carries debts from one op to the next.
    """
    ordered = sorted(passes, key=lambda one: sum(map(sum, one.values())))
    drop = len(ordered) // 3
    kept = ordered[drop : len(ordered) - drop]
    names = {name: None for one in kept for name in one}
    none = (0.0, 0.0)
    return {
        name: (fmean(one.get(name, none)[0] for one in kept), fmean(one.get(name, none)[1] for one in kept))
        for name in names
    }
