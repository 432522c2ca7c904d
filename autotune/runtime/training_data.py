"""The data sets that a training script goes through: one `Batches` for each, kept from epoch to epoch and in checkpoints.

A script asks for an epoch of a data set at a time. Splits that change and workers that read ahead must outlive the epoch, so
the batches of a data set are made when it is first asked for, and found again later. Checkpoints tell data sets apart by the
order in which they were first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from autotune.runtime.data import Batches


@dataclass(slots=True)
class _Source:
    dataset: Dataset[Any]
    batches: Batches
    resume_step: int | None = None
    """Where the next iteration of its epoch begins, after a checkpoint was loaded."""

    def first_step(self, epoch: int) -> int:
        steps = self.batches.steps_per_epoch
        resumed, self.resume_step = self.resume_step, None
        return resumed if resumed is not None and resumed // steps == epoch else epoch * steps


class TrainingData:
    """What one rank reads in the course of a script."""

    def __init__(self, samples: Sequence[int], rank: int, *, seed: int) -> None:
        self._samples, self._rank, self._seed = tuple(samples), rank, seed
        self._sources: list[_Source] = []
        self._loaded: dict[str, Any] = {"epoch": 0, "batches": []}
        self.before_batch: Callable[[int], None] | None = None
        """Told of every step of the data set that was used first, before its batch is read."""

    def epoch_of(self, dataset: Dataset[Any], epoch: int, **how: Any) -> Iterator[tuple[Any, float]]:
        """This rank's batches of an epoch, and what the mean loss of each counts. A rank that has no sample in a step is given
        one that does not count. `how`: arguments of `Batches`, at the first call.
        """
        source = self._source(dataset, how)
        batches = source.batches
        for step in range(source.first_step(epoch), (epoch + 1) * batches.steps_per_epoch):
            if self.before_batch is not None and source is self._sources[0]:
                self.before_batch(step)
            batch, num_samples, _ = batches.take(step)
            weight = batches.part(step).weight if num_samples else 0.0
            yield (batch if num_samples else batches.fetch(torch.tensor([0]))), weight

    @property
    def epoch(self) -> int:
        """The one to go on with, of the data set that was used first."""
        if not self._sources:
            return int(self._loaded["epoch"])
        batches = self._sources[0].batches
        return batches.next_step // batches.steps_per_epoch

    @property
    def next_step(self) -> int:
        """The next step that the data set used first will be taken in."""
        return self._sources[0].batches.next_step if self._sources else 0

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Of the data set that was used first: see `Batches.resplit`."""
        self._sources[0].batches.resplit(from_step, samples)

    def num_samples(self, step: int) -> int:
        """Of this rank in that step, of the data set that was used first."""
        return len(self._sources[0].batches.part(step).indices)

    def state_dict(self) -> dict[str, Any]:
        """Where each data set stands; those of a checkpoint that are not in use yet stay as they were."""
        states = [source.batches.state_dict() for source in self._sources]
        return {"epoch": self.epoch, "batches": [*states, *self._loaded["batches"][len(states) :]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, in the middle of an epoch if it was made there."""
        self._loaded = state
        for source, kept in zip(self._sources, state["batches"], strict=False):
            _resume(source, kept)

    def close(self) -> None:
        """End worker processes."""
        for source in self._sources:
            source.batches.close()

    def _source(self, dataset: Dataset[Any], how: dict[str, Any]) -> _Source:
        for source in self._sources:
            if source.dataset is dataset:
                return source
        made = _Source(dataset, Batches(dataset, self._samples, self._rank, seed=self._seed, **how))
        kept = self._loaded["batches"][len(self._sources) :][:1]
        for state in kept:
            _resume(made, state)
        self._sources.append(made)
        return made


def _resume(source: _Source, state: dict[str, Any]) -> None:
    source.batches.load_state_dict(state)
    source.resume_step = source.batches.next_step
