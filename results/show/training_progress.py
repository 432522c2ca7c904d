"""The progress of a training run: its step, its plan, and every decision that changed it.

On a terminal the last lines are drawn anew; in a log there is a line every few seconds. Lines about decisions stay.
Drawn when a step ends and never by a timer: a drawing thread would take CPU time from the steps themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.results.show.live_lines import live_lines, show
from autotune.results.show.watcher import Watcher
from autotune.results.store.decision import Decision, in_words
from autotune.results.text.numbers import format_ms, format_rate, plan_summary
from autotune.workloads.plan import Plan

_EVERY_S = {True: 0.5, False: 5.0}
"""On a terminal, in a log."""


class TrainingProgress(Watcher):
    """`clock` is a parameter, so that tests need not wait."""

    def __init__(self, console: Console, total_steps: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._total, self._clock = console, total_steps, clock
        self._plan: Plan | None = None
        self._said_s, self._said_steps = 0.0, 0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        self._show(text)

    def training_started(self, plan: Plan) -> None:
        self._plan, self._said_s, self._said_steps = plan, self._clock(), 0
        self._show(f"step 0/{self._total}")

    def decided(self, decision: Decision) -> None:
        self._plan = decision.plan
        self._console.print(Text(f"step {decision.step}/{self._total}: {in_words(decision)}"), soft_wrap=True)

    def step_done(self, num_steps: int) -> None:
        now_s = self._clock()
        if now_s - self._said_s < _EVERY_S[self._console.is_terminal]:
            return
        step_s = (now_s - self._said_s) / (num_steps - self._said_steps)
        self._said_s, self._said_steps = now_s, num_steps
        speed = f"{format_ms(step_s)} ms/step"
        if self._plan is not None:
            speed += f"  {format_rate(self._plan.global_batch / step_s)} samples/s"
        self._show(f"step {num_steps}/{self._total}  {speed}")

    def _show(self, line: str) -> None:
        words = Text(f"{line}  {plan_summary(self._plan)}" if self._plan is not None else line)
        if not self._console.is_terminal:
            self._console.print(words, soft_wrap=True)
            return
        if self._live is None:
            self._live = live_lines(self._console)
            self._live.start()
        show(self._live, words)
