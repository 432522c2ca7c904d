"""Every rank reports each step to rank 0; rank 0 decides; every rank follows the same directive for the next step.

A rank reports as soon as its own gradients are computed, before it waits for those of other ranks. So rank 0 has all
reports by the end of the step, and its directive for the next step arrives before that step begins. A rank waits for
the directive and never guesses it, so ranks cannot diverge. How a step ended travels with the report of the step after
it.

Reports and directives use the control network: some 150 and 30 bytes each, plus a plan where it changes. Reports join
on their way to rank 0: one message per step and connection. A directive may request a link probe by all ranks before the
step; its result travels with the next report. A failing `decide` does not end training: the error is kept, and the plan
stays as it is.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.profilers.step_stats import StepRow, StepStats
from autotune.results.store.decision import LOOK, Decision
from autotune.runtime.control.network import Network
from autotune.runtime.errors import PeerLostError
from autotune.workloads.errors import TrialTimeoutError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

Decide = Callable[[StepRow], Decision | None]
_REPORT, _DIRECTIVE, _OF_RANK = struct.Struct("<QIdII"), struct.Struct("<QBB"), struct.Struct("<II")
_REPORTS, _CLOSED, _NEXT = b"r", b"c", b"n"
"""Messages: reports of one step, on the way up; a rank has closed; the directive of the next step."""


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

    def pack(self) -> bytes:
        closed = self.closed.pack() if self.closed is not None else b""
        arrivals = self.arrivals if self.arrivals is not None else ()
        head = _REPORT.pack(self.step, self.samples, self.compute_s, len(closed), len(arrivals))
        has_probed = b"\1" if self.arrivals is not None else b"\0"
        return head + has_probed + closed + struct.pack(f"<{len(arrivals)}d", *arrivals)

    @classmethod
    def unpack(cls, data: bytes) -> StepReport:
        step, samples, compute_s, num_closed_bytes, num_arrivals = _REPORT.unpack_from(data)
        start = _REPORT.size + 1
        closed = data[start : start + num_closed_bytes]
        arrivals = struct.unpack_from(f"<{num_arrivals}d", data, start + num_closed_bytes)
        return cls(
            step=step,
            samples=samples,
            compute_s=compute_s,
            closed=StepStats.unpack(closed) if closed else None,
            arrivals=arrivals if data[_REPORT.size] else None,
        )


class StepCoordinator:
    """One rank's end of the agreement. All ranks construct it together; only rank 0 has a `decide`.

    Threads: the training thread calls `report`, `directive` and `close`; the network's thread calls the handler's methods.
    On rank 0 `decide` runs in the training thread if it adds the last report of a step, else in a thread of its own.
    `_changed` guards the reports, the directives and why no more will come.
    """

    def __init__(self, network: Network, decide: Decide | None, *, timeout_s: float) -> None:
        self.rank, self._size, self._timeout_s = network.rank, network.size, timeout_s
        self._num_below = network.place.num_below
        self._decide = decide
        self._changed = threading.Condition()
        self._directives: dict[int, StepDirective] = {}
        self._reports: dict[int, dict[int, bytes]] = {}
        self._lost: str | None = None
        self._failure: Exception | None = None
        self._closing = False
        self.decide_error = ""
        """Why `decide` is not called any more."""
        self._complete: queue.SimpleQueue[tuple[int, dict[int, bytes]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._decide_all, name="autotune-directives", daemon=True)
        if self.rank == 0 and self._size > 1:
            self._thread.start()
        self._topic = network.topic()
        self._topic.open(self)

    def report(self, report: StepReport) -> None:
        """Send this rank's report of a step to rank 0."""
        if (complete := self._add(report.step, {self.rank: report.pack()})) is not None:
            self._publish_next(report.step, complete)

    def fail(self, error: Exception) -> None:
        """This rank cannot report: `directive` raises why. Any thread may call this."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def directive(self, step: int) -> StepDirective:
        """Block until rank 0 has decided about this step."""
        if step == 0:
            return _UNCHANGED
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: step in self._directives or self._failure or self._lost is not None, self._timeout_s
            )
            if self._failure is not None:
                raise self._failure
            if step in self._directives:
                return self._directives.pop(step)
        if not in_time:
            raise TrialTimeoutError(f"not all ranks have reported step {step - 1} within {self._timeout_s:g} s")
        raise PeerLostError(self._lost)

    def close(self) -> None:
        """End the agreement after the last step."""
        self._closing = True
        if self.rank == 0:
            self._topic.to_all(_CLOSED)
        else:
            self._topic.to_root(_CLOSED)
        self._topic.close()
        if self._thread.is_alive():
            self._complete.put(None)
            self._thread.join(self._timeout_s)

    # -- called by the network -----------------------------------------------------------------------------------------

    def from_child(self, child: int, payload: bytes) -> None:  # noqa: ARG002 - the message names its ranks
        step, reports = _unpack_reports(payload)
        if (complete := self._add(step, reports)) is not None:
            self._complete.put((step, complete))

    def from_rank(self, rank: int, payload: bytes) -> None:  # noqa: ARG002 - only `_CLOSED` comes this way
        self.lost(f"rank {rank} is gone")

    def from_root(self, payload: bytes) -> None:
        if payload == _CLOSED:
            self.lost("rank 0 is gone")
            return
        step, has_plan, probes_links = _DIRECTIVE.unpack_from(payload, 1)
        plan = json.loads(payload[1 + _DIRECTIVE.size :]) if has_plan else None
        new_plan = from_data(Plan, plan, "plan") if plan is not None else None
        self._publish(step, StepDirective(plan=new_plan, probes_links=bool(probes_links)))

    def lost(self, why: str) -> None:
        with self._changed:
            if not self._closing:
                self._lost = self._lost or why
            self._changed.notify_all()

    # -- reports and directives ------------------------------------------------------------------------------------------

    def _add(self, step: int, reports: dict[int, bytes]) -> dict[int, bytes] | None:
        """Add reports of a step. Once those of the subtree are complete they go to the parent; on rank 0 they are returned."""
        with self._changed:
            collected = self._reports.setdefault(step, {})
            collected.update(reports)
            if len(collected) < self._num_below:
                return None
            del self._reports[step]
        if self.rank == 0:
            return collected
        self._topic.to_parent(_pack_reports(step, collected))
        return None

    def _decide_all(self) -> None:
        while (complete := self._complete.get()) is not None:
            self._publish_next(*complete)

    def _publish_next(self, step: int, complete: dict[int, bytes]) -> None:
        """Rank 0: decide about the step after this one."""
        directive = self._decided(step, [StepReport.unpack(complete[rank]) for rank in range(self._size)])
        plan = json.dumps(to_data(directive.plan)).encode() if directive.plan is not None else b""
        head = _DIRECTIVE.pack(step + 1, directive.plan is not None, directive.probes_links)
        self._topic.to_all(_NEXT + head + plan)
        self._publish(step + 1, directive)

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

    def _publish(self, step: int, directive: StepDirective) -> None:
        """Wake the training thread of this rank."""
        with self._changed:
            self._directives[step] = directive
            self._changed.notify_all()


def _pack_reports(step: int, reports: dict[int, bytes]) -> bytes:
    parts = [part for rank, data in reports.items() for part in (_OF_RANK.pack(rank, len(data)), data)]
    return b"".join([_REPORTS, struct.pack("<Q", step), *parts])


def _unpack_reports(payload: bytes) -> tuple[int, dict[int, bytes]]:
    (step,) = struct.unpack_from("<Q", payload, 1)
    start, reports = 9, {}
    while start < len(payload):
        rank, length = _OF_RANK.unpack_from(payload, start)
        start += _OF_RANK.size
        reports[rank] = payload[start : start + length]
        start += length
    return step, reports
