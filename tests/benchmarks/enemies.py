"""Enemies of retuning in real runs: `python -m tests.benchmarks.enemies [again | NAME…]`, paced, under three minutes.

A rank that reports half its time; bandwidth that swings with the period of the controller; a rank that is slow in every other step;
one slow step. Throughput is held against the best static plan, searched on the simulator over all steps together, in the same job.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from autotune.results.store.decision import Decision
from autotune.results.store.store import read_json
from tests.benchmarks.prediction import ROOT, paced
from tests.benchmarks.published_table import put_between

TRACES = ROOT / "tests" / "benchmarks" / "traces"
PUBLISHED = ROOT / "results" / "published" / "enemies"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.enemies"
WORKLOAD, CLUSTER = "vgg", "mixed4"
LIAR = "liar"
STEPS = {LIAR: 120, "oscillation": 112, "flicker": 100, "outlier": 60}
FIRST_STEPS = 2
"""Not counted: the first meters memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enemy:
    """One enemy: every step of the best static plan, of retuned training, and of the best static plan once more."""

    command: str
    label: str
    enemy: str
    static_s: tuple[float, ...]
    static_again_s: tuple[float, ...]
    retuned_s: tuple[float, ...]
    decisions: tuple[Decision, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Throughput over that of the best static plan, the mean of both runs."""
        static_s = (sum(self.static_s[FIRST_STEPS:]) + sum(self.static_again_s[FIRST_STEPS:])) / 2
        return static_s / sum(self.retuned_s[FIRST_STEPS:])

    @property
    def noise(self) -> float:
        """The best static plan again, over its first run."""
        return sum(self.static_s[FIRST_STEPS:]) / sum(self.static_again_s[FIRST_STEPS:])

    def summary(self) -> str:
        return f"{self.enemy}: {self.ratio:.3f}x the best static plan (again: {self.noise:.3f}x), {len(self.decisions)} decisions"


def table() -> str:
    rows = ["| enemy | runs | retuned / best static | best static again | decisions |", "|---|---|---|---|---|"]
    for path in sorted(PUBLISHED.glob("*.json")):
        found = read_json(Enemy, path)
        rows.append(
            f"| {found.enemy} | {found.label} | {found.ratio:.3f}x | {found.noise:.3f}x | {len(found.decisions)} |"
        )
    return "\n".join(rows)


def main(words: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    if words != ["again"]:
        for enemy in words or STEPS:
            out = PUBLISHED / f"{enemy}.json"
            paced([sys.executable, "-m", PROGRAM, WORKLOAD, CLUSTER, str(out), enemy, str(STEPS[enemy])])
    put_between(PAGE, "<!-- enemies -->", "<!-- /enemies -->", table())


if __name__ == "__main__":
    main(sys.argv[1:])
