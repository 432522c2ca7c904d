"""The progress of a sweep, a race or a profile: on a terminal one live line, in a log one line per trial.

The live line is drawn when an event occurs and never by a timer: a drawing thread would take CPU time from the steps that
are being measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from autotune.results.show.live_lines import LiveBar
from autotune.results.show.watcher import Watcher
from autotune.results.store.record import TrialRecord
from autotune.results.text.numbers import format_duration, format_ms, format_rate, format_times, plan_summary


class SweepProgress(Watcher):
    """Live progress with the time left. `clock` is a parameter, so that tests need not wait."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._bar: LiveBar | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._deadline_s: float | None = None
        self._started_s = 0.0
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def start(self, total_trials: int | None, title: str, *, time_limit_s: float | None = None) -> None:
        """A series of this many trials begins (None: as many as the time limit allows)."""
        self._close()
        self._total, self._done, self._started_s = total_trials, 0, self._clock()
        self._deadline_s = None if time_limit_s is None else self._started_s + time_limit_s
        if not self._console.is_terminal:
            self._say(title)
            return
        self._bar = LiveBar(
            *(_text(field) for field in ("{task.description}", "{task.fields[count]}")),
            BarColumn(bar_width=None),
            *(_text(field) for field in ("{task.fields[best]}", "{task.fields[left]}")),
            console=self._console,
            auto_refresh=False,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(title, total=total_trials, count=self._count(), best="", left="")
        self._bar.start()

    def trial_done(self, record: TrialRecord, best_step_s: float | None, default_step_s: float | None) -> None:
        self._done += 1
        if self._bar is None:
            self._say("  ".join([f"trial {self._count()}", *_parts(record, default_step_s), self._left()]).rstrip())
            return
        if record.step_s is None:
            self._say("  ".join([f"trial {self._count()}", *_parts(record, default_step_s)]))
        best = "" if best_step_s is None else f"best {format_ms(best_step_s)} ms/step"
        if best_step_s and default_step_s:
            best += f", {format_times(default_step_s / best_step_s)} default"
        self._bar.update(self._task, completed=self._done, count=self._count(), best=best, left=self._left())
        self._bar.refresh()

    def phase(self, text: str) -> None:
        if self._bar is None:
            self._say(text)
            return
        self._bar.update(self._task, description=text, left="")
        self._bar.refresh()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _count(self) -> str:
        if self._total is None:
            return str(self._done)
        return f"{self._done:>{len(str(self._total))}}/{self._total}"

    def _left(self) -> str:
        """The time left: as long for each remaining trial as for those so far, but no longer than the time limit."""
        now_s, estimates = self._clock(), []
        if self._total is not None and self._done:
            estimates.append((now_s - self._started_s) / self._done * (self._total - self._done))
        if self._deadline_s is not None:
            estimates.append(self._deadline_s - now_s)
        left_s = min(estimates, default=0.0)
        return f"(~{format_duration(left_s)} left)" if left_s > 0 else ""


def _parts(record: TrialRecord, default_step_s: float | None) -> list[str]:
    """One trial in words, without its number."""
    plan = plan_summary(record.plan)
    if (step_s := record.step_s) is None:
        reason = " ".join(record.reason.split()) or "no reason given"
        return [f"{record.state.value}: {reason}", plan]
    rate = record.plan.global_batch / step_s
    parts = [f"{format_ms(step_s):>4} ms/step", f"{format_rate(rate):>4} samples/s"]
    if default_step_s is not None:
        parts.append(f"{format_times(default_step_s / step_s):>6} default")
    return [*parts, plan]


def _text(field: str) -> TextColumn:
    return TextColumn(field, markup=False, table_column=Column(no_wrap=True))
