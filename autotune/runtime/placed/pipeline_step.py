"""A step of a pipeline as one rank saw it: its passes one by one, what it waited for, and the sums that trials are scored by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.profilers.timeline import Span, Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStep:
    """One step of one rank; moments on the performance counter."""

    begin_s: float
    data_s: float
    """The batch was there."""
    computed_s: float
    """The last pass of this rank was over."""
    reduced_s: float
    """Gradients were complete, also those that other ranks share."""
    end_s: float
    """Parameters were up to date, if the step was a trainer's."""
    loss_share: float
    """What this rank computed of the loss: the sum over ranks is the loss of the whole batch."""
    spans: tuple[Span, ...] = field(repr=False)
    """Passes and the waits between them."""
    late_s: float = 0.0
    """Emulated: how far real work ran behind the device, at worst."""

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def compute_s(self) -> float:
        passes_s = sum(span.duration_s for span in self.spans if span.lane == "compute")
        return passes_s + self.data_s - self.begin_s + self.end_s - self.reduced_s

    @property
    def wait_s(self) -> float:
        """Bubbles, and what shared gradients took."""
        return self.total_s - self.compute_s

    def timeline(self, rank: int) -> Timeline:
        """The step as spans, on the clock it was measured with."""
        around = tuple(span for span in self._around(rank) if span.duration_s > 0)
        return Timeline.merge([Timeline(spans=(*self.spans, *around))])

    def _around(self, rank: int) -> Iterator[Span]:
        moments = [
            ("host", "data", self.begin_s, self.data_s),
            ("host", "wait", self.computed_s, self.reduced_s),
            ("compute", "optimizer", self.reduced_s, self.end_s),
        ]
        for lane, kind, start_s, end_s in moments:
            yield Span(rank=rank, lane=lane, kind=kind, op=kind, start_s=start_s, end_s=end_s)
