"""A measured pipeline step of one rank: its passes and waits, and the sums that score a trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.profilers.timeline import Span, Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStep:
    """One step of one rank; times on the performance counter."""

    begin_s: float
    data_s: float
    """The batch was loaded."""
    computed_s: float
    """The last pass of this rank ended."""
    reduced_s: float
    """Gradients were complete, including shared ones."""
    end_s: float
    """Parameters were updated, if the step has an optimizer."""
    loss_share: float
    """This rank's part of the loss: the sum over ranks is the loss of the batch."""
    spans: tuple[Span, ...] = field(repr=False)
    """Passes and the waits between them."""
    late_s: float = 0.0
    """Emulated devices: the largest lag of the real work."""

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def compute_s(self) -> float:
        passes_s = sum(span.duration_s for span in self.spans if span.track == "compute")
        return passes_s + self.data_s - self.begin_s + self.end_s - self.reduced_s

    @property
    def wait_s(self) -> float:
        """Bubbles, and the sums of shared gradients."""
        return self.total_s - self.compute_s

    def timeline(self, rank: int) -> Timeline:
        """The step as spans, on the performance counter."""
        around = tuple(span for span in self._around(rank) if span.duration_s > 0)
        return Timeline.merge([Timeline(spans=(*self.spans, *around))])

    def _around(self, rank: int) -> Iterator[Span]:
        moments = [
            ("host", "data", self.begin_s, self.data_s),
            ("host", "wait", self.computed_s, self.reduced_s),
            ("compute", "optimizer", self.reduced_s, self.end_s),
        ]
        for track, kind, start_s, end_s in moments:
            yield Span(rank=rank, track=track, kind=kind, op=kind, start_s=start_s, end_s=end_s)
