"""A batch cut into the micro-batches of each lane: uneven ones, if one likes, each counting by its share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from autotune.workloads.errors import SpecError
from autotune.workloads.split import bounds, proportional


@dataclass(frozen=True, kw_only=True)
class BatchCut:
    """Samples lie in the batch micro-batch by micro-batch, and within one lane by lane."""

    samples: tuple[tuple[int, ...], ...]
    """Per lane: of each micro-batch."""
    weights: tuple[tuple[float, ...], ...] = ()
    """Per lane: what each micro-batch's mean loss counts. Empty: its share of the samples."""

    @property
    def total(self) -> int:
        return sum(map(sum, self.samples))

    def rows(self, lane: int, microbatch: int) -> slice:
        """Where its samples are in the batch."""
        counts = [count for one in zip(*self.samples, strict=True) for count in one]
        place = microbatch * len(self.samples) + lane
        end = list(accumulate(counts))[place]
        return slice(end - counts[place], end)

    def weight(self, lane: int, microbatch: int) -> float:
        if self.weights:
            return self.weights[lane][microbatch]
        return self.samples[lane][microbatch] / self.total

    def check(self, num_lanes: int, num_microbatches: int, num_samples: int) -> None:
        """A SpecError if the batch or the timetable is another."""
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
    """Micro-batches as equal as can be; the first have one more."""
    pieces = num_microbatches * num_lanes
    if num_samples < pieces:
        raise SpecError(f"{num_samples} samples cannot be cut into {pieces} micro-batches: use fewer")
    counts = [num_samples // pieces + (place < num_samples % pieces) for place in range(pieces)]
    return BatchCut(samples=tuple(tuple(counts[lane::num_lanes]) for lane in range(num_lanes)))


def for_samples(cut: BatchCut, num_samples: int) -> tuple[BatchCut, list[int]]:
    """The cut of a batch with other samples than it was made for, such as the last of an epoch, and the rows that lie in it.

    In proportion, as near as whole samples allow. A micro-batch that would be empty gets a sample that counts for nothing: every
    pass of the schedule has something to do.
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
