"""What retuning is worth when a mix changes: traces in a lab and paced, beside the best static plan and one who knows.

`nox -s drift` (needs root) runs `programs/drift.py` and keeps every step of every run under results/published/drift; `-- lab steady` runs one of
them, `-- again` makes the table of what is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median

from results.decision import COMPUTE, NETWORK, Decision
from results.published_table import put_between
from results.store import read_json
from tests.benchmarks.prediction import ROOT, in_lab, lab, paced
from workloads.plan import Plan

PUBLISHED = ROOT / "results" / "published" / "drift"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.drift"
WORKLOAD, CLUSTER = "vgg", "mixed4"
STEPS = {
    "busy-neighbour": 160,
    "random-walk": 160,
    "speed-drift": 200,
    "bandwidth-swing": 80,
    "link-drop": 80,
    "steady": 80,
}
"""Of each trace."""
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
        ends = [*self.changes[1:], len(ours)][: len(self.changes)]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """One trace in one kind of run."""

    command: str
    workload: str
    cluster: str
    label: str
    traced: Traced
    environment: dict[str, str] = field(default_factory=dict)


def measure(kind: str, traces: Iterable[str]) -> None:
    """Traces in a lab or paced, a job each."""
    with lab(CLUSTER) if kind == "lab" else nullcontext():
        for trace in traces:
            out = PUBLISHED / f"{kind}-{trace}.json"
            command = [sys.executable, "-m", PROGRAM, WORKLOAD, CLUSTER, str(out), trace, str(STEPS[trace])]
            (in_lab if kind == "lab" else paced)(command)


def table() -> str:
    rows = [
        "| trace | runs | clairvoyant / best static | retuned / best static | of its gain | recovered after, steps | decisions |"
    ]
    rows.append("|---|---|---|---|---|---|---|")
    for path in sorted(PUBLISHED.glob("*.json")):
        drift = read_json(Drift, path)
        rows.append(_row(drift.label, drift.traced))
    return "\n".join(rows)


def _row(label: str, traced: Traced) -> str:
    gain = traced.speedup(CLAIRVOYANT)
    kinds = [decision.kind for decision in traced.runs[RETUNED][0].decisions]
    counted = f"{kinds.count(COMPUTE)} samples, {kinds.count(NETWORK)} ways, {len(kinds)} in all"
    share = f"{100 * traced.share_of_gain:.0f} %" if gain > 1.02 else "-"
    recovered = ", ".join(str(steps) for steps in traced.recoveries()) or "-"
    return f"| {traced.trace} | {label} | {gain:.3f}x | {traced.speedup(RETUNED):.3f}x | {share} | {recovered} | {counted} |"


def main(arguments: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    kind, *traces = arguments or ("all",)
    if kind != "again":
        for one in ("paced", "lab") if kind == "all" else (kind,):
            measure(one, traces or STEPS)
    put_between(PAGE, "<!-- drift -->", "<!-- /drift -->", table())


if __name__ == "__main__":
    main(sys.argv[1:])
