"""What retuning is worth when a mix changes: traces in a lab and paced, beside the best static plan and one who knows.

`nox -s drift` (needs root) runs `programs/drift.py` and keeps every step of every run under results/published/drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from results.decision import Decision
from workloads.plan import Plan

STATIC, CLAIRVOYANT, RETUNED = "best static", "clairvoyant", "retuned"
FIRST_STEPS = 2
"""Not counted: the first meters memory."""
NEAR = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftRun:
    """One training run through a trace."""

    steps_s: tuple[float, ...]
    plan: Plan
    decisions: tuple[Decision, ...]
    cpu_s: float

    @property
    def total_s(self) -> float:
        return sum(self.steps_s[FIRST_STEPS:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """All contenders on one trace."""

    trace: str
    changes: tuple[int, ...]
    """Steps at which the mix becomes another one."""
    runs: dict[str, tuple[DriftRun, ...]]

    def total_s(self, name: str) -> float:
        return median(run.total_s for run in self.runs[name])

    def speedup(self, name: str) -> float:
        """Over the best static plan."""
        return self.total_s(STATIC) / self.total_s(name)

    @property
    def share_of_gain(self) -> float:
        """How much of the clairvoyant's gain retuning has."""
        return (self.speedup(RETUNED) - 1) / (self.speedup(CLAIRVOYANT) - 1)

    def recoveries(self) -> list[int]:
        """After each change, steps until one is within 5 % of what the clairvoyant's take until the next change."""
        ours, theirs = self.runs[RETUNED][0].steps_s, self.runs[CLAIRVOYANT][0].steps_s
        ends = [*self.changes[1:], len(ours)]
        found = []
        for start, end in zip(self.changes, ends, strict=True):
            bar_s = median(theirs[start:end]) / NEAR
            found.append(next((step - start for step in range(start, end) if ours[step] <= bar_s), end - start))
        return found

    def summary(self) -> str:
        return (
            f"{self.trace}: clairvoyant {self.speedup(CLAIRVOYANT):.3f}x, retuned {self.speedup(RETUNED):.3f}x the best static; "
            f"recovered after {self.recoveries()} steps; {len(self.runs[RETUNED][0].decisions)} decisions"
        )
