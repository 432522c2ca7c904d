"""How ranks agree on what the next step is like: every rank tells rank 0 how it computes, rank 0 decides, all follow.

A rank reports as soon as its own gradients are there, before it waits for those of the others. So rank 0 has heard everyone by
the time the step ends, and its word on the next step is there when that begins. The word is waited for, never guessed, so
ranks cannot disagree. How a step ended is told with the next one's report.

Reports and words take the lines of `comm.line`, some 150 and 20 bytes each, and a plan where it changes. A word may also ask
all ranks to time their links before the step, together; what they found comes with their next reports. Whoever decides must
not end training: if it fails, that is noted, and the plan stays as it is.
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
from autotune.runtime.control.channel import Switchboard, open_lines
from autotune.runtime.errors import PeerLostError
from autotune.workloads.errors import TrialTimeoutError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

Decide = Callable[[StepRow], Decision | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDirective:
    """What rank 0 says of a step before it begins."""

    plan: Plan | None = None
    """By which training goes from here on, if it is another than before."""
    look: bool = False
    """Time the links first."""


_GO_ON = StepDirective()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a rank tells of a step that it has just computed."""

    step: int
    samples: int
    """This rank's, in it."""
    compute_s: float
    """Its own forward and backward pass, without waiting."""
    closed: StepStats | None
    """How the step before it ended."""
    arrivals: tuple[float, ...] | None = None
    """Bytes per second, if it began with a look at the links."""

    def as_message(self) -> list[Any]:
        packed = base64.b64encode(self.closed.pack()).decode() if self.closed is not None else ""
        found = [[round(speed) for speed in self.arrivals]] if self.arrivals is not None else []
        return [self.step, self.samples, round(self.compute_s, 7), packed, *found]

    @classmethod
    def of_message(cls, message: Sequence[Any]) -> Report:
        step, samples, compute_s, packed, *found = message
        return cls(
            step=step,
            samples=samples,
            compute_s=compute_s,
            closed=StepStats.unpack(base64.b64decode(packed)) if packed else None,
            arrivals=tuple(map(float, found[0])) if found else None,
        )


class StepCoordinator:
    """A rank's end; made by all ranks together. `decide` is rank 0's."""

    def __init__(self, group: dist.ProcessGroup, decide: Decide | None, *, timeout_s: float) -> None:
        self.rank, self._size, self._timeout_s = group.rank(), group.size(), timeout_s
        self._decide = decide
        self._lines = open_lines(group) if self._size > 1 else []
        self._rank_of = {line: rank for rank, line in enumerate(self._lines, start=1)}
        self._changed = threading.Condition()
        self._words: dict[int, StepDirective] = {}
        self._reports: dict[int, dict[int, Report]] = {}
        self._gone: int | None = None
        self._closing = False
        self.trouble = ""
        """Why nothing is decided any more."""
        self._thread = threading.Thread(target=self._listen, name="autotune-pilot", daemon=True)
        self._thread.start()

    def report(self, report: Report) -> None:
        """This rank has computed a step."""
        if self.rank == 0:
            self._heard(0, report)
        else:
            self._lines[0].send(report.as_message())

    def word(self, step: int) -> StepDirective:
        """What holds from this step on; waits for rank 0 to say."""
        if step == 0:
            return _GO_ON
        with self._changed:
            spoken = self._changed.wait_for(lambda: step in self._words or self._gone is not None, self._timeout_s)
            if step in self._words:
                return self._words.pop(step)
        if not spoken:
            raise TrialTimeoutError(f"not all ranks have told of step {step - 1} within {self._timeout_s:g} s")
        raise PeerLostError(f"rank {self._gone} is gone")

    def close(self) -> None:
        """The last step is done."""
        self._closing = True
        for line in self._lines:
            line.cut()
        self._thread.join(self._timeout_s)
        for line in self._lines:
            line.close()

    def _listen(self) -> None:
        """Until every line is closed."""
        listening = Switchboard(self._lines)
        while listening:
            for line in listening.ready():
                try:
                    message = line.receive()
                except EOFError:
                    listening.drop(line)
                    self._lost(self._rank_of[line] if self.rank == 0 else 0)
                    continue
                if self.rank == 0:
                    self._heard(self._rank_of[line], Report.of_message(message))
                else:
                    step, plan, *look = message
                    spoken = from_data(Plan, plan, "plan") if plan is not None else None
                    self._speak(step, StepDirective(plan=spoken, look=bool(look)))
        listening.close()

    def _lost(self, rank: int) -> None:
        with self._changed:
            if not self._closing:
                self._gone = rank
            self._changed.notify_all()

    def _heard(self, rank: int, report: Report) -> None:
        """Whoever brings the last report decides."""
        with self._changed:
            reports = self._reports.setdefault(report.step, {})
            reports[rank] = report
            if len(reports) < self._size:
                return
            del self._reports[report.step]
        word = self._decided(report.step, [reports[rank] for rank in range(self._size)])
        plan = to_data(word.plan) if word.plan is not None else None
        self._tell([report.step + 1, plan, *([1] if word.look else [])])
        self._speak(report.step + 1, word)

    def _decided(self, step: int, reports: Sequence[Report]) -> StepDirective:
        if self._decide is None:
            return _GO_ON
        closed = [report.closed for report in reports if report.closed is not None]
        found = [report.arrivals for report in reports if report.arrivals is not None]
        row = StepRow(
            step=step,
            samples=tuple(report.samples for report in reports),
            compute_s=tuple(report.compute_s for report in reports),
            closed=tuple(closed) if len(closed) == self._size else None,
            arrivals=tuple(found) if len(found) == self._size else None,
        )
        try:
            decision = self._decide(row)
        except Exception as error:  # noqa: BLE001 - training goes on whatever the one who decides does
            self._decide, self.trouble = None, f"{type(error).__name__}: {error}"
            return _GO_ON
        if decision is None:
            return _GO_ON
        return StepDirective(plan=decision.plan if decision.switches else None, look=decision.kind == LOOK)

    def _tell(self, message: list[Any]) -> None:
        for line in self._lines:
            try:
                line.send(message)
            except OSError:  # its listener will say that it is gone
                continue

    def _speak(self, step: int, word: StepDirective) -> None:
        with self._changed:
            self._words[step] = word
            self._changed.notify_all()
