"""An iterable-style data set of a script.

Every rank reads the same stream and keeps its slice of each global batch, by the split of that step. One batch is read
ahead, so the last batch is recognized as such, and a checkpoint made in it resumes with the next epoch. A checkpoint within
an epoch restarts the stream and skips the used batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autotune.runtime.data.batch_request import Request
from autotune.runtime.data.batches import check_same
from autotune.runtime.data.epochs import Dealt, EpochCount
from autotune.runtime.data.order_sources import steps_of
from autotune.runtime.data.split_history import SplitHistory, check_not_taken, slice_of
from autotune.workloads.errors import SpecError


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A global batch."""

    epoch: int
    first_step: int
    """The first step of its epoch."""
    step: int
    samples: list[Any]
    is_last: bool


class IterableData:
    """The data set on one rank."""

    def __init__(self, request: Request, samples: Sequence[int], rank: int, *, min_samples: int = 1) -> None:
        self._dataset, self._loading = request.dataset, request.loading
        self._drop_last = request.drop_last
        self._rank, self._min_samples = rank, min_samples
        self._splits, self._count = SplitHistory(samples), EpochCount()
        self._chunk: _Chunk | None = None
        self.next_step = 0
        """The step after the last one that was taken."""
        self.epoch = 0
        """The epoch to continue with."""
        self._first_step = 0
        """The first step of that epoch."""

    def steps(self, request: Request, epoch: int | None) -> Iterator[int]:
        """The steps of an epoch, or its remaining steps after a checkpoint."""
        self._loading = request.loading
        epoch, resumed = self._count.begin(epoch)
        first_step = self.next_step if resumed is None else self._first_step
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch)
        stream = iter(self._dataset)
        step = self.next_step
        chunk = self._skip_and_read(stream, step - first_step)
        while chunk:
            following = self._read(stream)
            self._chunk = _Chunk(epoch, first_step, step, chunk, not following)
            yield step
            chunk, step = following, step + 1

    def deal(self, step: int) -> Dealt:
        """The batch of this rank; one of weight 0 where it has no samples."""
        chunk = self._chunk
        assert chunk is not None
        assert chunk.step == step, "deal() is called after the step has been read"
        self.next_step = step + 1
        self.epoch = chunk.epoch + chunk.is_last
        self._first_step = self.next_step if chunk.is_last else chunk.first_step
        whole = chunk.samples
        mine = whole[self._slice(step, len(whole))]
        shown = mine or [whole[number % len(whole)] for number in range(self._min_samples)]
        batch = self._loading.pin(self._loading.collate(shown))
        return Dealt(batch=batch, weight=len(mine) / len(whole), step=step, num_samples=len(mine))

    def num_steps(self, request: Request) -> int:
        """The number of steps of an epoch, if the data set has a length."""
        if not hasattr(request.dataset, "__len__"):
            raise TypeError(
                f"{type(request.dataset).__name__} is iterable-style and has no len(): how many steps an epoch has is not "
                "known before its end"
            )
        return steps_of(len(request.dataset), self._splits.global_batch, drop_last=self._drop_last)

    def num_samples(self, step: int) -> int:
        """The samples of this rank in `step`; a step that has not been read counts as a whole batch."""
        chunk = self._chunk
        length = len(chunk.samples) if chunk is not None and chunk.step == step else self._splits.global_batch
        found = self._slice(step, length)
        return int(found.stop - found.start)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split batches like this from `from_step` on, which no rank has taken; the same call on all ranks."""
        check_not_taken(from_step, self.next_step)
        self._splits.resplit(from_step, samples)

    def state_dict(self) -> dict[str, Any]:
        """The position of training in the stream."""
        return {
            "next_step": self.next_step,
            "splits": self._splits.state(self.next_step),
            "epoch": self.epoch,
            "epoch_start": self._first_step,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; on another number of ranks with the split that this object was made with."""
        check_same({"order": "shuffled"} | state, self._identity())
        self._splits.load(state["splits"])
        self.next_step, self._first_step = int(state["next_step"]), int(state["epoch_start"])
        self.epoch = int(state["epoch"])
        self._count.resume(self.epoch, self.next_step)

    def close(self) -> None:
        """Nothing to close."""

    def _identity(self) -> dict[str, Any]:
        return {"order": "stream", "global_batch": self._splits.global_batch, "drop_last": self._drop_last}

    def _slice(self, step: int, length: int) -> slice:
        return slice_of(self._splits.at(step), length, self._rank, self._min_samples)

    def _read(self, stream: Iterator[Any]) -> list[Any]:
        found = list(islice(stream, self._splits.global_batch))
        return [] if self._drop_last and len(found) < self._splits.global_batch else found

    def _skip_and_read(self, stream: Iterator[Any], num_batches: int) -> list[Any]:
        """The first unused batch; an epoch has at least one."""
        for _ in range(num_batches):
            self._read(stream)
        if found := self._read(stream):
            return found
        name = type(self._dataset).__name__
        if num_batches:
            raise SpecError(
                f"{name} ends within the {num_batches} batches of this epoch that the checkpoint had used: resume with the "
                "data that the job began with"
            )
        rule = "drop_last leaves out a short batch" if self._drop_last else "training needs one sample at least"
        raise SpecError(
            f"{name} gave fewer samples than a batch has: {rule}; its __iter__ must start anew in every epoch"
        )
