"""Batches fetched ahead by torch's DataLoader workers, although the samples of a rank may change at any step.

A loader asks its sampler for indices long before the batch is used. Others lose or repeat samples there when the split
changes in between. Here the sampler notes for which step and which indices each batch was asked, in order, and only a batch
that was asked for exactly what its step now needs is handed out. After a change the sampler goes back to the first batch
under way that no longer fits; what was fetched for nothing is dropped. The loader runs on across epochs: no step waits for
workers to start again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """How samples are read. The names are torch's DataLoader's."""

    num_workers: int = 0
    """Processes of each rank that read ahead; 0: samples are read when they are needed."""
    prefetch_factor: int = 2
    """Batches that each worker is ahead."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; torch's default_collate if not given. Samples of unequal length need one that pads."""
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    """Its name or itself."""
    timeout_s: float = 0.0
    """The longest wait for a batch from a worker; 0: no limit."""
    pin_memory: bool = False
    """Batches are put into page-locked memory, where there is an accelerator to copy them to."""
    persistent_workers: bool = False
    """Changes nothing: workers go on from epoch to epoch in any case."""

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch_factor < 1:
            raise SpecError(
                f"num_workers is {self.num_workers} and prefetch_factor {self.prefetch_factor}: "
                "they must be at least 0 and 1"
            )

    @property
    def pins(self) -> bool:
        """Whether there is something to pin memory for."""
        return self.pin_memory and torch.accelerator.is_available()

    def collate(self, samples: list[Any]) -> Any:
        """One batch; None of no samples."""
        return (self.collate_fn or default_collate)(samples) if samples else None

    def pin(self, batch: Any) -> Any:
        """A batch that was read without workers; theirs are pinned by torch's loader."""
        return pin_memory(batch) if self.pins else batch


@dataclass(frozen=True, slots=True)
class _Asked:
    step: int
    indices: tuple[int, ...]


class Prefetch:
    """The batches of one rank, fetched ahead by worker processes."""

    def __init__(
        self, dataset: Dataset[Any], loading: Loading, indices: Callable[[int], Sequence[int]], *, seed: int
    ) -> None:
        """`indices` says which samples the rank takes in a step, as things stand. `seed` is for the workers' own draws."""
        self._dataset, self._loading, self._seed = dataset, loading, seed
        self._indices = indices
        self._iterator: Iterator[Any] | None = None
        self._asked: deque[_Asked] = deque()
        """What the loader was asked for and has not handed over, in this order."""
        self._next = 0
        """The step that the loader will ask for next."""

    def take(self, step: int) -> Any:
        """The batch of `step`, None of no samples; after an error of a worker, the next call starts new ones."""
        wanted = _Asked(step, tuple(self._indices(step)))
        if wanted not in self._asked:
            self._next = step
        if self._iterator is None:
            self._iterator = iter(self._loader())
        try:
            while True:
                batch = next(self._iterator)
                if self._asked.popleft() == wanted:
                    return batch if wanted.indices else None
        except BaseException:
            self.close()
            raise

    def changed(self) -> None:
        """Some steps need other samples than before: ask again from the first that was asked for the wrong ones."""
        for asked in self._asked:
            if asked.indices != tuple(self._indices(asked.step)):
                self._next = asked.step
                return

    def close(self) -> None:
        """End the workers."""
        iterator, self._iterator = self._iterator, None
        self._asked.clear()
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined] # torch leaves it to the garbage collector

    def __iter__(self) -> Iterator[list[int]]:
        """What torch's loader takes for a batch sampler: it never ends.

        Data sets and collate functions need not bear an empty list: a step without samples reads one, which is dropped.
        """
        while True:
            asked = _Asked(self._next, tuple(self._indices(self._next)))
            self._next += 1
            self._asked.append(asked)
            yield list(asked.indices) or [0]

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
            generator=torch.Generator().manual_seed(self._seed),  # torch's own generator stays as it is
        )
