"""The gain of retuning on a changing cluster: scenarios in a lab and paced, beside the best static plan and an oracle.

`nox -s drift` (needs root) runs `programs/drift.py` and keeps the step times of all runs under results/published/drift.
Name what to run, such as `-- lab steady`: kinds (lab, paced), scenarios, `contenders`, or `parts` (the gain of each part of
the plan if only that part may change, in the lab). `-- again` writes the tables of the kept runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median

from autotune.online.candidates import RETUNE_ALL, Retunable
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
"""Steps of each scenario."""
REPEATS = {"steady": 3, "link-drop": 3, "speed-drift": 5}
"""Repeats of scenarios with small differences."""
PART_STEPS = {"busy-neighbour": 80, "random-walk": 80, "bandwidth-swing": 80, "link-drop": 80}
"""Steps of the scenarios in which parts are compared."""
KINDS, WHAT = ("paced", "lab"), ("contenders", "parts")
STATIC, ORACLE, RETUNED = "best static", "oracle", "retuned"
UNCHANGED = "unchanged"
PARTS = {
    "samples": Retunable(partition=False, codec=False, collective=False),
    "partition": Retunable(samples=False, codec=False, collective=False),
    "codec": Retunable(samples=False, partition=False, collective=False),
    "collective": Retunable(samples=False, partition=False, codec=False),
    "all": RETUNE_ALL,
}
FIRST_STEPS = 2
"""Not counted: the first step measures memory."""
NEAR = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftRun:
    """One training run through a scenario."""

    steps_s: tuple[float, ...]
    plan: Plan
    decisions: tuple[Decision, ...]
    cpu_s: float

    @property
    def total_s(self) -> float:
        return sum(self.steps_s[FIRST_STEPS:])


def other_name(name: str, number: int) -> str:
    """The name of one of several plans that may be the best of their kind."""
    return name if number == 0 else f"{name}, another configuration"


def best_first(runs: dict[str, tuple[DriftRun, ...]]) -> dict[str, tuple[DriftRun, ...]]:
    """Order the runs so that the best static plan and the oracle are the fastest as measured, not as predicted."""
    found = dict(runs)
    for name in (STATIC, ORACLE):
        other = other_name(name, 1)
        if other in found and _total_s(found[other]) < _total_s(found[name]):
            found[name], found[other] = found[other], found[name]
    return found


def _total_s(runs: tuple[DriftRun, ...]) -> float:
    return median(run.total_s for run in runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """All contenders in one scenario."""

    scenario: str
    changes: tuple[int, ...]
    """Steps at which the cluster changes."""
    runs: dict[str, tuple[DriftRun, ...]]

    def total_s(self, name: str) -> float:
        return median(run.total_s for run in self.runs[name])

    def speedup(self, name: str) -> float:
        """Over the best static plan."""
        return self.total_s(STATIC) / self.total_s(name)

    @property
    def share_of_gain(self) -> float:
        """The gain of retuning as a share of the oracle's gain."""
        return (self.speedup(RETUNED) - 1) / (self.speedup(ORACLE) - 1)

    def recoveries(self) -> list[int]:
        """After each change, steps until one is within 5 % of the oracle's median step until the next change."""
        ours, theirs = self.runs[RETUNED][0].steps_s, self.runs[ORACLE][0].steps_s
        ends = [*self.changes[1:], len(ours)][: len(self.changes)]
        found = []
        for start, end in zip(self.changes, ends, strict=True):
            limit_s = median(theirs[start:end]) / NEAR
            found.append(next((step - start for step in range(start, end) if ours[step] <= limit_s), end - start))
        return found

    def parts_summary(self) -> str:
        """The gain of each part over the same plan without retuning."""
        found = (f"{name} {self.total_s(UNCHANGED) / self.total_s(name):.3f}x" for name in self.runs)
        return f"{self.scenario}, relative to the plan without retuning: {', '.join(found)}"

    def summary(self) -> str:
        return (
            f"{self.scenario}: oracle {self.speedup(ORACLE):.3f}x, retuned {self.speedup(RETUNED):.3f}x the best static; "
            f"recovered after {self.recoveries()} steps; {len(self.runs[RETUNED][0].decisions)} decisions"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """One scenario in one kind of run."""

    command: str
    workload: str
    cluster: str
    label: str
    compared: Compared
    environment: dict[str, str] = field(default_factory=dict)


def measure(kind: str, what: str, scenarios: dict[str, int]) -> None:
    """Run scenarios in a lab or paced, one job each."""
    with lab(CLUSTER) if kind == "lab" else nullcontext():
        for scenario, num_steps in scenarios.items():
            name = f"{kind}-{scenario}.json" if what == "contenders" else f"parts/{scenario}.json"
            command = [
                sys.executable,
                "-m",
                PROGRAM,
                WORKLOAD,
                CLUSTER,
                str(PUBLISHED / name),
                scenario,
                str(num_steps),
            ]
            more = ["--parts"] if what == "parts" else ["--repeats", str(REPEATS.get(scenario, 1))]
            (in_lab if kind == "lab" else paced)([*command, *more])


def table() -> str:
    rows = [
        "| scenario | runs | oracle / best static | retuned / best static | of its gain | recovered after, steps | decisions |"
    ]
    rows.append("|---|---|---|---|---|---|---|")
    for path in sorted(PUBLISHED.glob("*.json")):
        drift = read_json(Drift, path)
        rows.append(_row(drift.label, drift.compared))
    return "\n".join(rows)


def _row(label: str, compared: Compared) -> str:
    gain = compared.speedup(ORACLE)
    kinds = [decision.kind for decision in compared.runs[RETUNED][0].decisions if decision.switches]
    counted = (
        f"{kinds.count(COMPUTE)} samples, {kinds.count(NETWORK)} configurations, {kinds.count(REGRET)} rolled back"
    )
    share = f"{100 * compared.share_of_gain:.0f} %" if gain > 1.02 else "-"
    recovered = ", ".join(str(steps) for steps in compared.recoveries()) or "-"
    return f"| {compared.scenario} | {label} | {gain:.3f}x | {compared.speedup(RETUNED):.3f}x | {share} | {recovered} | {counted} |"


def parts_table() -> str:
    rows = [f"| scenario | {' | '.join(PARTS)} | decisions, by part |", "|---|" + "---|" * (len(PARTS) + 1)]
    for path in sorted((PUBLISHED / "parts").glob("*.json")):
        compared = read_json(Drift, path).compared
        gains = [f"{compared.total_s(UNCHANGED) / compared.total_s(name):.3f}x" for name in PARTS]
        counts = [sum(decision.switches for decision in compared.runs[name][0].decisions) for name in PARTS]
        rows.append(f"| {compared.scenario} | {' | '.join(gains)} | {', '.join(map(str, counts))} |")
    return "\n".join(rows)


def chosen(words: list[str], known: Iterable[str]) -> list[str]:
    """The names that were given, or all if none was."""
    listed = list(known)
    return [name for name in listed if name in words] or listed


def main(words: list[str]) -> None:
    (PUBLISHED / "parts").mkdir(parents=True, exist_ok=True)
    if unknown := set(words) - {"again", *KINDS, *WHAT, *STEPS}:
        raise SystemExit(
            f"{', '.join(sorted(unknown))}: name kinds ({', '.join(KINDS)}), scenarios, or {', '.join(WHAT)}"
        )
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
