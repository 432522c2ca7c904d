"""One data-parallel training step as one rank measured it: the time stamps of its phases, its communication, its loss.

From these follow the step time, the compute time, the exposed wait, and the step's timeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autotune.profilers.timeline import Span, Timeline, all_reduce_name
from autotune.runtime.reduce.bucketed import Sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One training step of one rank; time stamps are of the performance counter."""

    begin_s: float
    data_s: float
    """Time stamp: the batch has been read."""
    forward_s: float
    """Time stamp: the loss is computed. With several passes that of the last, in whose backward gradients are exchanged."""
    backward_s: float
    """Time stamp: the last local gradient is computed."""
    reduced_s: float
    """Time stamp: the last gradient is reduced over all ranks."""
    end_s: float
    loss_share: float
    """This rank's loss times its share of the batch: the sum over ranks is the loss of the whole batch."""
    num_samples: int
    late_s: float
    """Emulated: how far real work ran behind the device, or behind the link when the last collective was delivered."""
    work: float = 0.0
    """Of its samples: their number, or the sum of the workload's `work`."""
    sent: Sent = field(default_factory=Sent)
    """Its collectives; with cross-step overlap, those that completed during the step."""
    directive_s: float = 0.0
    """Seconds before `begin_s` spent on the step directive: waiting for it, and applying its plan."""
    link_probe_s: float = 0.0
    """The part of `directive_s` that a link probe took; it is no part of the step's performance."""
    passes: tuple[tuple[float, float], ...] = ()
    """Of the passes before the last: the time stamps of the loss and of the last gradient."""

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s + self.directive_s

    @property
    def wait_s(self) -> float:
        """For gradients after backward, for the BatchNorm statistics of other ranks, for the step directive, and with
        cross-step overlap for parameters in the forward pass.
        """
        return self.reduced_s - self.backward_s + self.sent.stalled_s + self.directive_s

    @property
    def compute_s(self) -> float:
        return self.total_s - self.wait_s

    def timeline(self, rank: int) -> Timeline:
        """The step as spans, on the clock it was measured with. A collective has the same name on every rank."""
        phases = [
            ("host", "data", self.begin_s, self.data_s),
            *self._passes(),
            ("host", "wait", self.backward_s, self.reduced_s),
            ("compute", "optimizer", self.reduced_s, self.end_s),
        ]
        spans = [Span(rank=rank, track=track, kind=kind, op=kind, start_s=a, end_s=b) for track, kind, a, b in phases]
        for index, sent in enumerate(self.sent.deliveries):
            part = Span(
                rank=rank,
                track="comm",
                kind="comm",
                op=sent.name or all_reduce_name(index),
                start_s=max(sent.posted_s, self.begin_s),
                end_s=max(sent.end_s, self.begin_s),
                num_bytes=sent.num_bytes,
            )
            if sent.ready_s is not None and sent.ready_s < sent.posted_s:
                queued_s = max(sent.ready_s, self.begin_s)
                spans.append(replace(part, kind="queue", start_s=queued_s, end_s=part.start_s))
            spans.append(part)
        return Timeline.merge([Timeline(spans=tuple(spans))])

    def _passes(self) -> Iterator[tuple[str, str, float, float]]:
        """Forward and backward; forward is split where it waited for parameters."""
        begun_s = self.data_s
        for forward_s, backward_s in (*self.passes, (self.forward_s, self.backward_s)):
            for start_s, end_s in self.sent.stalls:
                if begun_s <= start_s < forward_s:
                    yield "compute", "forward", begun_s, start_s
                    yield "host", "wait", start_s, end_s
                    begun_s = end_s
            yield "compute", "forward", begun_s, forward_s
            yield "compute", "backward", forward_s, backward_s
            begun_s = backward_s
