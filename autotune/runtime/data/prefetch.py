"""Batches read ahead by torch's DataLoader workers, although the samples of a rank may change at any step.

A loader requests indices from its sampler long before the batch is used. If the split changes in between, samples could be
lost or repeated. Here the sampler records the step and the indices of each requested batch, in order, and only a batch with
exactly the indices that its step now needs is used. After a change the sampler returns to the first requested batch that no
longer matches; batches that were read in vain are dropped. The loader continues across epochs: no step waits for workers to
start again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from autotune.runtime.device import accelerator_type
from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """How samples are read. The names are those of torch's DataLoader."""

    num_workers: int = 0
    """Worker processes of each rank that read ahead; 0: samples are read when needed."""
    prefetch_factor: int = 2
    """Batches that each worker reads ahead."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; default: torch's default_collate. Samples of unequal length need one that pads."""
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    """The context or its name."""
    timeout_s: float = 0.0
    """The longest wait for a batch from a worker; 0: no limit."""
    pin_memory: bool = False
    """Put batches into page-locked memory, where there is an accelerator."""
    persistent_workers: bool = False
    """Without effect: workers always persist over epochs."""

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1:
            raise SpecError(
                f"num_workers is {self.num_workers} and prefetch_factor {self.prefetch_factor}: "
                "they must be at least 0 and 1"
            )

    @property
    def pins(self) -> bool:
        """Whether memory is pinned: only with an accelerator."""
        return self.pin_memory and bool(accelerator_type())

    def collate(self, samples: list[Any]) -> Any:
        """One batch; None without samples."""
        return (self.collate_fn or default_collate)(samples) if samples else None

    def pin(self, batch: Any) -> Any:
        """Pin a batch that was read without workers; torch's loader pins those of workers."""
        return pin_memory(batch) if self.pins else batch


@dataclass(frozen=True, slots=True)
class _Requested:
    step: int
    indices: tuple[int, ...]


class Prefetch:
    """The batches of one rank, read ahead by worker processes.

    One thread makes all calls; torch's loader iterates the sampler on that thread, within `take`.
    """

    def __init__(
        self, dataset: Dataset[Any], loading: Loading, indices: Callable[[int], Sequence[int]], *, seed: int
    ) -> None:
        """`indices`: the samples of the rank in a step, by the present splits. `seed`: of the workers' random generators."""
        self._dataset, self._loading, self._seed = dataset, loading, seed
        self._indices = indices
        self._iterator: Iterator[Any] | None = None
        self._requested: deque[_Requested] = deque()
        """The batches that the loader was requested to read and has not yielded, in this order."""
        self._next = 0
        """The step that the loader requests next."""

    def take(self, step: int) -> Any:
        """The batch of `step`, None without samples. After an error of a worker, the next call starts new workers."""
        wanted = _Requested(step, tuple(self._indices(step)))
        if wanted not in self._requested:
            self._next = step
        if self._iterator is None:
            self._iterator = iter(self._loader())
        try:
            while True:
                batch = next(self._iterator)
                if self._requested.popleft() == wanted:
                    return batch if wanted.indices else None
        except BaseException:
            self.close()
            raise

    def changed(self) -> None:
        """Called when the samples of some steps have changed: request again from the first step with other samples."""
        for requested in self._requested:
            if requested.indices != tuple(self._indices(requested.step)):
                self._next = requested.step
                return

    def close(self) -> None:
        """End the worker processes."""
        iterator, self._iterator = self._iterator, None
        self._requested.clear()
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined] # torch leaves it to the garbage collector

    def __iter__(self) -> Iterator[list[int]]:
        """The batch sampler of torch's loader, without end.

        Data sets and collate functions need not support an empty list: a step without samples reads one, which is dropped.
        """
        while True:
            requested = _Requested(self._next, tuple(self._indices(self._next)))
            self._next += 1
            self._requested.append(requested)
            yield list(requested.indices) or [0]

    def _loader(self) -> DataLoader[Any]:
        loading = self._loading
        return DataLoader(
            self._dataset,
            batch_sampler=self,
            num_workers=loading.num_workers,
            prefetch_factor=loading.prefetch_factor,
            collate_fn=loading.collate,
            worker_init_fn=loading.worker_init_fn,
            multiprocessing_context=loading.multiprocessing_context,
            timeout=loading.timeout_s,
            pin_memory=loading.pins,
            generator=torch.Generator().manual_seed(self._seed),  # torch's default generator is not used
        )
