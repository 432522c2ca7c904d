"""What retuning is worth when a mix changes: traces in a lab and paced, beside the best static plan and one who knows.

`nox -s drift` (needs root) runs `programs/drift.py` and keeps every step of every run under results/published/drift. Name what to run: `-- lab steady`
(kinds: lab, paced; traces; `contenders` or `parts`: what each part of the plan gives when it alone may change, in the lab).
`-- again` makes the tables of what is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median

from autotune.online.candidates import ALL_PARTS, Parts
from autotune.results.store.decision import COMPUTE, NETWORK, REGRET, Decision
from autotune.results.store.store import read_json
from autotune.workloads.plan import Plan
from tests.benchmarks.prediction import ROOT, in_lab, lab, paced
from tests.benchmarks.published_table import put_between

PUBLISHED = ROOT / "results" / "published" / "drift"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.drift"
WORKLOAD, CLUSTER = "vgg", "mixed4"
STEPS = {
    "busy-neighbour": 160,
    "random-walk": 120,
    "speed-drift": 200,
    "bandwidth-swing": 80,
    "link-drop": 80,
    "steady": 80,
}
"""Of each trace."""
REPEATS = {"steady": 3, "link-drop": 3, "speed-drift": 5}
"""Where little is at stake, noise of a single run would hide it."""
PART_STEPS = {"busy-neighbour": 80, "random-walk": 80, "bandwidth-swing": 80, "link-drop": 80}
"""Of the traces on which parts are compared."""
KINDS, WHAT = ("paced", "lab"), ("contenders", "parts")
STATIC, CLAIRVOYANT, RETUNED = "best static", "clairvoyant", "retuned"
UNCHANGED = "unchanged"
PARTS = {
    "samples": Parts(partition=False, codec=False, collective=False),
    "partition": Parts(samples=False, codec=False, collective=False),
    "codec": Parts(samples=False, partition=False, collective=False),
    "collective": Parts(samples=False, partition=False, codec=False),
    "all": ALL_PARTS,
}
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


def other_name(name: str, number: int) -> str:
    """Of several plans that may be the best of their kind."""
    return name if number == 0 else f"{name}, another way"


def best_first(runs: dict[str, tuple[DriftRun, ...]]) -> dict[str, tuple[DriftRun, ...]]:
    """The best static plan and the clairvoyant are those that were measured to be, not those that were predicted to."""
    found = dict(runs)
    for name in (STATIC, CLAIRVOYANT):
        other = other_name(name, 1)
        if other in found and _total_s(found[other]) < _total_s(found[name]):
            found[name], found[other] = found[other], found[name]
    return found


def _total_s(runs: tuple[DriftRun, ...]) -> float:
    return median(run.total_s for run in runs)


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

    def parts_summary(self) -> str:
        """What each part gives over the same plan left alone."""
        found = (f"{name} {self.total_s(UNCHANGED) / self.total_s(name):.3f}x" for name in self.runs)
        return f"{self.trace}, over the plan left alone: {', '.join(found)}"

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


def measure(kind: str, what: str, traces: dict[str, int]) -> None:
    """Traces in a lab or paced, a job each."""
    with lab(CLUSTER) if kind == "lab" else nullcontext():
        for trace, num_steps in traces.items():
            out = PUBLISHED / f"{kind}-{trace}.json" if what == "contenders" else PUBLISHED / "parts" / f"{trace}.json"
            command = [sys.executable, "-m", PROGRAM, WORKLOAD, CLUSTER, str(out), trace, str(num_steps)]
            more = ["--parts"] if what == "parts" else ["--repeats", str(REPEATS.get(trace, 1))]
            (in_lab if kind == "lab" else paced)([*command, *more])


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
    kinds = [decision.kind for decision in traced.runs[RETUNED][0].decisions if decision.switches]
    counted = f"{kinds.count(COMPUTE)} samples, {kinds.count(NETWORK)} ways, {kinds.count(REGRET)} taken back"
    share = f"{100 * traced.share_of_gain:.0f} %" if gain > 1.02 else "-"
    recovered = ", ".join(str(steps) for steps in traced.recoveries()) or "-"
    return f"| {traced.trace} | {label} | {gain:.3f}x | {traced.speedup(RETUNED):.3f}x | {share} | {recovered} | {counted} |"


def parts_table() -> str:
    rows = [f"| trace | {' | '.join(PARTS)} | decisions, by part |", "|---|" + "---|" * (len(PARTS) + 1)]
    for path in sorted((PUBLISHED / "parts").glob("*.json")):
        traced = read_json(Drift, path).traced
        gains = [f"{traced.total_s(UNCHANGED) / traced.total_s(name):.3f}x" for name in PARTS]
        counts = [sum(decision.switches for decision in traced.runs[name][0].decisions) for name in PARTS]
        rows.append(f"| {traced.trace} | {' | '.join(gains)} | {', '.join(map(str, counts))} |")
    return "\n".join(rows)


def chosen(words: list[str], known: Iterable[str]) -> list[str]:
    """Those of the known that were named, or all if none was."""
    listed = list(known)
    return [name for name in listed if name in words] or listed


def main(words: list[str]) -> None:
    (PUBLISHED / "parts").mkdir(parents=True, exist_ok=True)
    if unknown := set(words) - {"again", *KINDS, *WHAT, *STEPS}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: name kinds ({', '.join(KINDS)}), traces, or {', '.join(WHAT)}")
    if words != ["again"]:
        for what in chosen(words, WHAT):
            steps = STEPS if what == "contenders" else PART_STEPS
            kinds = chosen(words, KINDS) if what == "contenders" else ["lab"]
            for kind in kinds:
                measure(kind, what, {name: steps[name] for name in chosen(words, steps)})
    put_between(PAGE, "<!-- drift -->", "<!-- /drift -->", table())
    put_between(PAGE, "<!-- parts -->", "<!-- /parts -->", parts_table())


if __name__ == "__main__":
    main(sys.argv[1:])
