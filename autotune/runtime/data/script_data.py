"""The data sets of a training script, kept from epoch to epoch and in checkpoints.

A script requests the batches of a data set once, or in every epoch. Changing splits and workers that read ahead must
outlive the epoch, so the source of a data set is made at the first request and reused. The same data set in another order
(shuffled for training, in its own order for evaluation) is another source. Checkpoints identify sources by the order of
their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from autotune.runtime.data.batch_request import Request, read_request
from autotune.runtime.data.epochs import Dealt
from autotune.runtime.data.iterable_data import IterableData
from autotune.runtime.data.map_data import MapData
from autotune.workloads.errors import SpecError

__all__ = ["Dealt", "Epoch", "TrainingData"]

_Source = MapData | IterableData


class Epoch:
    """The batches of one rank in an epoch. A second iteration is the next epoch, or the same if the script gave its number."""

    def __init__(self, source: _Source, request: Request, epoch: int | None, before: Callable[[int], None]) -> None:
        """`before`: called with each step, before its batch is read."""
        self.source, self._request, self._epoch, self._before = source, request, epoch, before

    def __len__(self) -> int:
        """The number of steps of a whole epoch, with those before a checkpoint."""
        return self.source.num_steps(self._request)

    def __iter__(self) -> Iterator[Dealt]:
        """Iterated by all ranks together."""
        for step in self.source.steps(self._request, self._epoch):
            self._before(step)
            yield self.source.deal(step)


class TrainingData:
    """The data sets of a script on one rank."""

    def __init__(
        self,
        samples: Sequence[int],
        rank: int,
        *,
        seed: int,
        min_samples: int = 1,
        share: Callable[[Any], Any] | None = None,
    ) -> None:
        """`min_samples`: the fewest samples of a rank that has any, in a short batch: 2 with local BatchNorm statistics.
        `share`: broadcasts rank 0's value; called by all ranks. None: the job has one process.
        """
        self._samples, self._rank, self._seed = tuple(samples), rank, seed
        self._min_samples, self._share = min_samples, share
        self._requests: list[Request] = []
        """The first request of each source."""
        self._sources: list[_Source] = []
        self._loaded: dict[str, Any] = {"epoch": 0, "batches": []}
        self.before_batch: Callable[[int], None] | None = None
        """Called with each step of the data set that was used first, before its batch is read."""

    def batches(  # noqa: PLR0913 - DataLoader's arguments
        self,
        source: Any,
        *,
        epoch: int | None = None,
        shuffle: bool | None = None,
        sampler: Any = None,
        drop_last: bool | None = None,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
        **loading: Any,
    ) -> Epoch:
        """The batches of this rank, of a data set or of the parts of a DataLoader. `epoch`: default: the next one. The other
        arguments apply to this call. `loading`: see `Loading`.
        """
        given = {"shuffle": shuffle, "sampler": sampler, "drop_last": drop_last, "work": work}
        request = read_request(source, sum(self._samples), given | {"loss_weights": loss_weights} | loading)
        found = self._source(request)
        return Epoch(found, request, epoch, lambda step: self._announce(found, step))

    @property
    def epoch(self) -> int:
        """The epoch to continue with, of the data set that was used first."""
        return self._sources[0].epoch if self._sources else int(self._loaded["epoch"])

    @property
    def next_step(self) -> int:
        """The next step of the data set that was used first."""
        if self._sources:
            return self._sources[0].next_step
        return next((int(state["next_step"]) for state in self._loaded["batches"]), 0)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split the data set that was used first: see `Batches.resplit`."""
        if not self._sources:
            raise SpecError("a new split needs data to divide: call job.batches() first")
        self._sources[0].resplit(from_step, samples)

    def num_samples(self, step: int) -> int:
        """The samples of this rank in `step`, of the data set that was used first."""
        return self._sources[0].num_samples(step)

    def state_dict(self) -> dict[str, Any]:
        """The position in each data set; entries of a checkpoint that are not in use yet are kept."""
        states = [source.state_dict() for source in self._sources]
        return {"epoch": self.epoch, "batches": [*states, *self._loaded["batches"][len(states) :]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, within an epoch if it was made there."""
        self._loaded = state
        for source, kept in zip(self._sources, state["batches"], strict=False):
            source.load_state_dict(kept)

    def close(self) -> None:
        """End worker processes."""
        for source in self._sources:
            source.close()

    def _announce(self, source: _Source, step: int) -> None:
        if self.before_batch is not None and source is self._sources[0]:
            self.before_batch(step)

    def _source(self, request: Request) -> _Source:
        for known, source in zip(self._requests, self._sources, strict=True):
            if known.same_source(request):
                return source
        made = self._make(request)
        for state in self._loaded["batches"][len(self._sources) :][:1]:
            made.load_state_dict(state)
        self._requests.append(request)
        self._sources.append(made)
        return made

    def _make(self, request: Request) -> _Source:
        if request.is_stream:
            return IterableData(request, self._samples, self._rank, min_samples=self._min_samples)
        return MapData(
            request, self._samples, self._rank, seed=self._seed, min_samples=self._min_samples, share=self._share
        )
