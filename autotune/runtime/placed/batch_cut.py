"""A batch cut into the micro-batches of each lane. They may be uneven: each loss is weighted by its share of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from autotune.workloads.errors import SpecError
from autotune.workloads.split import bounds, proportional


@dataclass(frozen=True, kw_only=True)
class BatchCut:
    """The samples of a batch are ordered by micro-batch, then by lane."""

    samples: tuple[tuple[int, ...], ...]
    """Per lane: samples of each micro-batch."""
    weights: tuple[tuple[float, ...], ...] = ()
    """Per lane: the weight of each micro-batch's mean loss. Empty: its share of the samples."""

    @property
    def total(self) -> int:
        return sum(map(sum, self.samples))

    def rows(self, lane: int, microbatch: int) -> slice:
        """The rows of its samples in the batch."""
        counts = [count for one in zip(*self.samples, strict=True) for count in one]
        place = microbatch * len(self.samples) + lane
        end = list(accumulate(counts))[place]
        return slice(end - counts[place], end)

    def weight(self, lane: int, microbatch: int) -> float:
        if self.weights:
            return self.weights[lane][microbatch]
        return self.samples[lane][microbatch] / self.total

    def check(self, num_lanes: int, num_microbatches: int, num_samples: int) -> None:
        """A SpecError if the cut does not match the batch or the timetable."""
        for name in ("samples", "weights"):
            table = getattr(self, name)
            if (table or name == "samples") and [len(one) for one in table] != [num_microbatches] * num_lanes:
                raise SpecError(
                    f"the batch is cut into {[len(one) for one in table]} micro-batches ({name}) but the timetable has "
                    f"{num_microbatches} of each of {num_lanes} lanes: give one number for each"
                )
        if min(map(min, self.samples)) < 1:
            raise SpecError(f"micro-batches have {self.samples} samples: each needs one at least")
        if self.total != num_samples:
            raise SpecError(f"micro-batches have {self.total} samples together but the batch has {num_samples}")


def even_cut(num_samples: int, num_microbatches: int, num_lanes: int = 1) -> BatchCut:
    """Micro-batches that differ by at most one sample; the first are the larger ones."""
    pieces = num_microbatches * num_lanes
    if num_samples < pieces:
        raise SpecError(f"{num_samples} samples cannot be cut into {pieces} micro-batches: use fewer")
    counts = [num_samples // pieces + (place < num_samples % pieces) for place in range(pieces)]
    return BatchCut(samples=tuple(tuple(counts[lane::num_lanes]) for lane in range(num_lanes)))


def for_samples(cut: BatchCut, num_samples: int) -> tuple[BatchCut, list[int]]:
    """The same cut for a batch of another size, such as the last of an epoch, and the rows of the batch that it uses.

    Sizes are proportional, rounded to whole samples. An empty micro-batch gets one sample of weight 0, so that every pass of
    the schedule has data.
    """
    if num_samples == cut.total:
        return cut, list(range(num_samples))
    lanes = len(cut.samples)
    pieces = [count for one in zip(*cut.samples, strict=True) for count in one]
    counts = proportional(pieces, num_samples, bounds(len(pieces), num_samples, minimum=0))
    rows: list[int] = []
    for count, end in zip(counts, accumulate(counts), strict=True):
        rows += range(end - count, end) if count else [0]
    table = [counts[lane::lanes] for lane in range(lanes)]
    return BatchCut(
        samples=tuple(tuple(max(count, 1) for count in one) for one in table),
        weights=tuple(tuple(count / num_samples for count in one) for one in table),
    ), rows
