"""Adversarial scenarios for retuning in real paced runs: `python -m tests.benchmarks.adversarial [again | NAME…]` (3 minutes).

A rank that reports half its time; bandwidth that oscillates with the period of the controller; a rank that is slow in every
other step; one outlier step. The throughput is compared with that of the best static plan in the same job. That plan is
found on the simulator, over all steps together.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from autotune.results.store.decision import Decision
from autotune.results.store.store import read_json
from tests.benchmarks.prediction import ROOT, paced
from tests.benchmarks.published_table import put_between

SCENARIOS = ROOT / "tests" / "benchmarks" / "scenarios"
PUBLISHED = ROOT / "results" / "published" / "adversarial"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.adversarial"
WORKLOAD, CLUSTER = "vgg", "mixed4"
MISREPORTING = "misreporting-rank"
STEPS = {MISREPORTING: 120, "oscillation": 112, "flapping-rank": 100, "outlier-step": 60}
FIRST_STEPS = 2
"""Not counted: the first step measures memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adversarial:
    """One scenario: the step times of the best static plan, of retuned training, and of the best static plan again."""

    command: str
    label: str
    scenario: str
    static_s: tuple[float, ...]
    static_again_s: tuple[float, ...]
    retuned_s: tuple[float, ...]
    decisions: tuple[Decision, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Throughput relative to the best static plan, the mean of its two runs."""
        static_s = (sum(self.static_s[FIRST_STEPS:]) + sum(self.static_again_s[FIRST_STEPS:])) / 2
        return static_s / sum(self.retuned_s[FIRST_STEPS:])

    @property
    def noise(self) -> float:
        """Throughput of the second run of the best static plan relative to the first."""
        return sum(self.static_s[FIRST_STEPS:]) / sum(self.static_again_s[FIRST_STEPS:])

    def summary(self) -> str:
        return (
            f"{self.scenario}: {self.ratio:.3f}x the best static plan (again: {self.noise:.3f}x), "
            f"{len(self.decisions)} decisions"
        )


def table() -> str:
    rows = ["| scenario | runs | retuned / best static | best static again | decisions |", "|---|---|---|---|---|"]
    for path in sorted(PUBLISHED.glob("*.json")):
        found = read_json(Adversarial, path)
        rows.append(
            f"| {found.scenario} | {found.label} | {found.ratio:.3f}x | {found.noise:.3f}x | {len(found.decisions)} |"
        )
    return "\n".join(rows)


def main(words: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    if words != ["again"]:
        for scenario in words or STEPS:
            out = PUBLISHED / f"{scenario}.json"
            paced([sys.executable, "-m", PROGRAM, WORKLOAD, CLUSTER, str(out), scenario, str(STEPS[scenario])])
    put_between(PAGE, "<!-- adversarial -->", "<!-- /adversarial -->", table())


if __name__ == "__main__":
    main(sys.argv[1:])
