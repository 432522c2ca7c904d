"""Every rank reports each step to rank 0; rank 0 decides; every rank follows the same directive for the next step.

A rank reports as soon as its own gradients are computed, before it waits for those of other ranks. So rank 0 has all
reports by the end of the step, and its directive for the next step arrives before that step begins. A rank waits for
the directive and never guesses it, so ranks cannot diverge. How a step ended travels with the report of the step after
it.

Reports and directives use control channels (`control.channel`): some 150 and 20 bytes each, plus a plan where it
changes. A directive may request a link probe by all ranks before the step; its result travels with the next report. A
failing `decide` does not end training: the error is kept, and the plan stays as it is.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from autotune.profilers.step_stats import StepRow, StepStats
from autotune.results.store.decision import LOOK, Decision
from autotune.runtime.control.channel import ChannelSelector, open_channels
from autotune.runtime.errors import PeerLostError
from autotune.workloads.errors import TrialTimeoutError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

Decide = Callable[[StepRow], Decision | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDirective:
    """Rank 0's decision about one step."""

    plan: Plan | None = None
    """The plan from this step on; None: unchanged."""
    probes_links: bool = False
    """Whether all ranks run a link probe before this step."""


_UNCHANGED = StepDirective()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One rank's measurements of a step that it has just computed."""

    step: int
    samples: int
    """Of this rank in this step."""
    compute_s: float
    """Forward and backward pass of this rank, without waits."""
    closed: StepStats | None
    """How the step before it ended."""
    arrivals: tuple[float, ...] | None = None
    """Bytes per second, if the step began with a link probe."""

    def as_message(self) -> list[Any]:
        packed = base64.b64encode(self.closed.pack()).decode() if self.closed is not None else ""
        arrivals = [[round(speed) for speed in self.arrivals]] if self.arrivals is not None else []
        return [self.step, self.samples, round(self.compute_s, 7), packed, *arrivals]

    @classmethod
    def of_message(cls, message: Sequence[Any]) -> StepReport:
        step, samples, compute_s, packed, *arrivals = message
        return cls(
            step=step,
            samples=samples,
            compute_s=compute_s,
            closed=StepStats.unpack(base64.b64decode(packed)) if packed else None,
            arrivals=tuple(map(float, arrivals[0])) if arrivals else None,
        )


class StepCoordinator:
    """One rank's end of the agreement. All ranks construct it together; only rank 0 has a `decide`.

    Threads: the training thread calls `report`, `directive` and `close`; a listener thread receives from the channels.
    On rank 0 `decide` runs in the thread that adds the last report of a step. `_changed` guards the reports, the
    directives and the lost rank.
    """

    def __init__(self, group: dist.ProcessGroup, decide: Decide | None, *, timeout_s: float) -> None:
        self.rank, self._size, self._timeout_s = group.rank(), group.size(), timeout_s
        self._decide = decide
        self._channels = open_channels(group) if self._size > 1 else []
        self._rank_of = {channel: rank for rank, channel in enumerate(self._channels, start=1)}
        self._changed = threading.Condition()
        self._directives: dict[int, StepDirective] = {}
        self._reports: dict[int, dict[int, StepReport]] = {}
        self._lost_rank: int | None = None
        self._closing = False
        self.decide_error = ""
        """Why `decide` is not called any more."""
        self._thread = threading.Thread(target=self._listen, name="autotune-directives", daemon=True)
        self._thread.start()

    def report(self, report: StepReport) -> None:
        """Send this rank's report of a step to rank 0."""
        if self.rank == 0:
            self._add_report(0, report)
        else:
            self._channels[0].send(report.as_message())

    def directive(self, step: int) -> StepDirective:
        """Block until rank 0 has decided about this step."""
        if step == 0:
            return _UNCHANGED
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: step in self._directives or self._lost_rank is not None, self._timeout_s
            )
            if step in self._directives:
                return self._directives.pop(step)
        if not in_time:
            raise TrialTimeoutError(f"not all ranks have reported step {step - 1} within {self._timeout_s:g} s")
        raise PeerLostError(f"rank {self._lost_rank} is gone")

    def close(self) -> None:
        """Close the channels after the last step."""
        self._closing = True
        for channel in self._channels:
            channel.shut_down()
        self._thread.join(self._timeout_s)
        for channel in self._channels:
            channel.close()

    def _listen(self) -> None:
        """Runs in the listener thread until every channel is closed."""
        selector = ChannelSelector(self._channels)
        while selector:
            for channel in selector.ready():
                try:
                    message = channel.receive()
                except EOFError:
                    selector.drop(channel)
                    self._lose(self._rank_of[channel] if self.rank == 0 else 0)
                    continue
                if self.rank == 0:
                    self._add_report(self._rank_of[channel], StepReport.of_message(message))
                else:
                    step, plan, *probes_links = message
                    new_plan = from_data(Plan, plan, "plan") if plan is not None else None
                    self._publish(step, StepDirective(plan=new_plan, probes_links=bool(probes_links)))
        selector.close()

    def _lose(self, rank: int) -> None:
        with self._changed:
            if not self._closing:
                self._lost_rank = rank
            self._changed.notify_all()

    def _add_report(self, rank: int, report: StepReport) -> None:
        """Rank 0: the thread that adds the last report of a step decides about the next one."""
        with self._changed:
            reports = self._reports.setdefault(report.step, {})
            reports[rank] = report
            if len(reports) < self._size:
                return
            del self._reports[report.step]
        directive = self._decided(report.step, [reports[rank] for rank in range(self._size)])
        plan = to_data(directive.plan) if directive.plan is not None else None
        self._send_to_all([report.step + 1, plan, *([1] if directive.probes_links else [])])
        self._publish(report.step + 1, directive)

    def _decided(self, step: int, reports: Sequence[StepReport]) -> StepDirective:
        if self._decide is None:
            return _UNCHANGED
        closed = [report.closed for report in reports if report.closed is not None]
        arrivals = [report.arrivals for report in reports if report.arrivals is not None]
        row = StepRow(
            step=step,
            samples=tuple(report.samples for report in reports),
            compute_s=tuple(report.compute_s for report in reports),
            closed=tuple(closed) if len(closed) == self._size else None,
            arrivals=tuple(arrivals) if len(arrivals) == self._size else None,
        )
        try:
            decision = self._decide(row)
        except Exception as error:  # noqa: BLE001 - no error of a controller ends training
            self._decide, self.decide_error = None, f"{type(error).__name__}: {error}"
            return _UNCHANGED
        if decision is None:
            return _UNCHANGED
        return StepDirective(plan=decision.plan if decision.switches else None, probes_links=decision.kind == LOOK)

    def _send_to_all(self, message: list[Any]) -> None:
        for channel in self._channels:
            try:
                channel.send(message)
            except OSError:  # the rank is gone: `_listen` finds the channel closed
                continue

    def _publish(self, step: int, directive: StepDirective) -> None:
        """Wake the training thread of this rank."""
        with self._changed:
            self._directives[step] = directive
            self._changed.notify_all()
