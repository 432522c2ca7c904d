"""The passes of a rank in a step, by the workload's loop: micro-batches, their weights and their loss.

A rank splits its samples of a step into near-equal micro-batches (`Loop.passes`). The mean loss of each is weighted by its
samples over those of the whole batch, so that the sum over passes and ranks is the gradient of the mean over the batch, for
every split. Batches that are read ahead are split by the workers that read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from autotune.runtime.data.batches import batches_of
from autotune.workloads.workload import Loop, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One forward and backward pass."""

    batch: Any
    """None: no pass to run."""
    weight: float = 0.0
    """The weight of its mean loss in that of the whole batch."""
    samples: float = 0.0
    """In samples of mean work."""


class MicroBatches:
    """Reads the batches of one rank pass by pass."""

    def __init__(self, workload: Workload, loop: Loop, samples: Sequence[int], rank: int, *, seed: int) -> None:
        self._loop = loop
        self._cuts_ahead = loop.accumulate > 1 and getattr(workload, "num_workers", 0) > 0
        read = _in_passes(workload, loop) if self._cuts_ahead else workload
        self.batches = batches_of(read, samples, rank, seed=seed)

    def take(self, step: int) -> list[Pass]:
        """The passes of this rank in `step`; none where it has no samples."""
        part = self.batches.part(step)
        cut = part.indices.split(list(self._loop.passes(len(part.indices))))
        shares = [self._share(indices, part.indices, self.batches.order._loss_weights) for indices in cut]
        works = [self._share(indices, part.indices, self.batches.order._work) for indices in cut]
        samples = self.batches.equivalent_samples(part)
        return [
            Pass(batch=batch, weight=part.weight * share, samples=samples * work)
            for batch, share, work in zip(self._read(step, cut), shares, works, strict=False)
        ]

    def idle(self) -> Pass:
        """A pass of weight 0, for a rank without samples that must run the model."""
        batch = self.batches.fetch(torch.arange(self._loop.min_samples) % self.batches.num_samples)
        return Pass(batch=batch[0] if self._cuts_ahead else batch)

    def _read(self, step: int, cut: Sequence[Tensor]) -> list[Any]:
        if self._cuts_ahead:
            return self.batches.take(step)[0] or []
        if len(cut) > 1:
            self.batches.next_step = step + 1
            return [self.batches.fetch(indices) for indices in cut]
        batch, num_samples, _ = self.batches.take(step)
        return [batch] if num_samples else []

    @staticmethod
    def _share(some: Tensor, mine: Tensor, values: Tensor | None) -> float:
        """The share of these samples in those of the rank, by number or by `values`."""
        if len(some) == len(mine):
            return 1.0
        return len(some) / len(mine) if values is None else _total(values[some]) / _total(values[mine])


def _total(values: Tensor) -> float:
    return math.fsum(values.tolist())


def _in_passes(workload: Any, loop: Loop) -> Workload:
    """The attributes of a workload that `batches_of` reads; a batch is a list of micro-batches."""
    given = {name: getattr(workload, name) for name in ("work", "loss_weights") if hasattr(workload, name)}
    collate = partial(_collate_passes, loop, getattr(workload, "collate", None) or default_collate)
    read = SimpleNamespace(
        name=workload.name,
        global_batch=workload.global_batch,
        min_samples=workload.min_samples,
        dataset=workload.dataset,
        num_workers=workload.num_workers,
        collate=collate,
        **given,
    )
    return cast("Workload", read)


def _collate_passes(loop: Loop, collate: Callable[[list[Any]], Any], samples: list[Any]) -> list[Any]:
    ends = accumulate(loop.passes(len(samples)), initial=0)
    return [collate(samples[begin:end]) for begin, end in pairwise(ends)]


def loss_of(workload: Workload, loop: Loop, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
    """The loss, with the loop's autocast; at least float32, so that its weight is not rounded."""
    with _autocast(loop, device):
        loss = workload.loss(model, batch)
    return loss.to(torch.promote_types(loss.dtype, torch.float32))


def _autocast(loop: Loop, device: torch.device) -> AbstractContextManager[Any]:
    if loop.autocast is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, loop.autocast))
