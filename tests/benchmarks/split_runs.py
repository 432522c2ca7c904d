"""Splits that follow unlike and disturbed devices: `python -m tests.benchmarks.split_runs [again | balance | disturbance]`.

"balance": devices that differ by a factor of four, training that starts from the even split. "disturbance": the test of DBS (arXiv
2007.11831): with p = 0.1 per epoch a random worker becomes three times slower for two epochs; the even split, the split for
the devices as stated, and retuned training. Both paced, about five minutes; kept under results/published/split.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median

from autotune.results.store.decision import Decision
from autotune.results.store.store import read_json
from tests.benchmarks.lines import Panel, picture
from tests.benchmarks.prediction import ROOT, paced
from tests.benchmarks.published_table import put_between

PUBLISHED = ROOT / "results" / "published" / "split"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.split_runs"
WORKLOAD, CLUSTER = "vgg", "mixed4"
BALANCED = {"vgg": (64, 128, 256), "gpt": (64,)}
"""Global batches."""
BALANCE_STEPS = 60
EVEN, STATIC, RETUNED = "even", "static", "retuned"
EPOCH, NUM_EPOCHS, CHANCE, LASTS, SLOWER = 8, 24, 0.1, 2, 1 / 3
"""Steps of an epoch, epochs, the chance of a disturbance in each, how many it lasts, and the speed that it leaves."""
SEED, NUM_RANKS, DISTURBED_BATCH = 10, 4, 64
FIRST_STEPS = 2
"""Not counted: the first step measures memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Training from the even split on unlike devices."""

    command: str
    label: str
    workload: str
    global_batch: int
    splits: tuple[tuple[int, ...], ...]
    """Of each step."""
    compute_s: tuple[tuple[float, ...], ...]
    """Of each step and rank."""
    steps_s: tuple[float, ...]
    ideal_samples_per_s: float
    """What the devices' speeds add up to, were there nothing else to do."""
    least_imbalance: float
    """Of the best split in whole samples, as the cost model has it."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def adjustments(self) -> list[int]:
        """Steps with another split than the one before."""
        return [step + 1 for step, (before, after) in enumerate(pairwise(self.splits)) if before != after]

    def imbalance(self, first: int, end: int) -> float:
        """max/mean - 1 of compute time, medians over those steps."""
        times = [median(step[rank] for step in self.compute_s[first:end]) for rank in range(len(self.splits[0]))]
        return max(times) / fmean(times) - 1

    def after(self, count: int) -> float:
        """The imbalance once so many adjustments have been made, at most."""
        cuts = [0, *self.adjustments, len(self.splits)]
        place = min(count, len(cuts) - 2)
        first, end = cuts[place], cuts[place + 1]
        return self.imbalance(first + (first == 0), max(end, first + 2))

    @property
    def of_ideal(self) -> float:
        """Throughput of the last third."""
        last = self.steps_s[2 * len(self.steps_s) // 3 :]
        return self.global_batch / median(last) / self.ideal_samples_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A training run."""

    steps_s: tuple[float, ...]
    losses: tuple[float, ...]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbed:
    """The same disturbances for all."""

    command: str
    label: str
    disturbances: tuple[tuple[int, int], ...]
    """Step and rank."""
    curves: dict[str, Curve]
    environment: dict[str, str] = field(default_factory=dict)

    def total_s(self, name: str) -> float:
        return sum(self.curves[name].steps_s[FIRST_STEPS:])

    @property
    def loss_difference(self) -> float:
        """Between any two at the same step, the largest, as a share of the loss."""
        steps = zip(*(curve.losses for curve in self.curves.values()), strict=True)
        return max((max(losses) - min(losses)) / max(losses) for losses in steps)


def disturbances() -> list[tuple[int, int]]:
    """Drawn epoch by epoch; none begins while another lasts."""
    draw, found, free_from = random.Random(SEED), [], 1
    for epoch in range(NUM_EPOCHS):
        chance, rank = draw.random(), draw.randrange(NUM_RANKS)
        if chance < CHANCE and epoch >= free_from:
            found.append((epoch * EPOCH, rank))
            free_from = epoch + LASTS + 1
    return found


def write_scenario(path: Path) -> None:
    """Write the disturbances as a scenario file."""
    lines = [f'description = "with p = {CHANCE} per epoch of {EPOCH} steps a random rank is slowed for {LASTS}"']
    for step, rank in disturbances():
        for at, speed in ((step, SLOWER), (step + LASTS * EPOCH, 1.0)):
            lines += ["", "[[change]]", f"at = {at}", f"rank = {rank}", f"speed = {speed:.4f}"]
    path.write_text("\n".join(lines) + "\n")


def drawn(found: Disturbed) -> str:
    over_steps = {name: list(enumerate(curve.losses)) for name, curve in found.curves.items()}
    over_s = {
        name: list(zip(accumulate(curve.steps_s), curve.losses, strict=True)) for name, curve in found.curves.items()
    }
    return picture(
        [
            Panel(title=f"{WORKLOAD} on {CLUSTER}, {found.label}", x_label="seconds", y_label="loss", lines=over_s),
            Panel(title="the same loss, step by step", x_label="steps", y_label="loss", lines=over_steps),
        ]
    )


def every_balance() -> list[tuple[str, int]]:
    return [(workload, batch) for workload, batches in BALANCED.items() for batch in batches]


def balance_file(folder: Path, workload: str, batch: int) -> Path:
    return folder / f"balance-{workload}-{batch}.json"


def balance_of(job: tuple[str, int]) -> Balance:
    return read_json(Balance, balance_file(PUBLISHED, *job))


def balance_table() -> str:
    rows = [
        "| workload | global batch | adjustments | imbalance, even split | after 1 | after 2 | after 3 | least in whole samples | of the sum of speeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in map(balance_of, every_balance()):
        shares = [f"{100 * found.after(count):.1f} %" for count in range(4)]
        cells = [
            found.workload,
            str(found.global_batch),
            str(len(found.adjustments)),
            *shares,
            f"{100 * found.least_imbalance:.1f} %",
        ]
        rows.append(f"| {' | '.join([*cells, f'{100 * found.of_ideal:.0f} %'])} |")
    return "\n".join(rows)


def disturbance_table() -> str:
    path = PUBLISHED / "disturbance.json"
    if not path.exists():
        return ""
    found = read_json(Disturbed, path)
    rows = ["| split | seconds | over the even split | loss at the end | changes |", "|---|---|---|---|---|"]
    for name, curve in found.curves.items():
        faster = found.total_s(EVEN) / found.total_s(name)
        rows.append(
            f"| {name} | {found.total_s(name):.1f} | {faster:.2f}x | {curve.losses[-1]:.4f} | {len(curve.decisions)} |"
        )
    foot = f"{len(found.disturbances)} disturbances; losses at the same step differ by at most {found.loss_difference:.1g} of the loss ({found.label})."
    return "\n".join([*rows, "", foot])


def main(words: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    write_scenario(PUBLISHED / "disturbance.toml")
    for what in () if words == ["again"] else words or ("balance", "disturbance"):
        jobs = every_balance() if what == "balance" else [(WORKLOAD, DISTURBED_BATCH)]
        for workload, batch in jobs:
            paced([sys.executable, "-m", PROGRAM, what, str(PUBLISHED), workload, str(batch)])
    if (PUBLISHED / "disturbance.json").exists():
        (PUBLISHED / "disturbance.svg").write_text(drawn(read_json(Disturbed, PUBLISHED / "disturbance.json")))
    put_between(PAGE, "<!-- balance -->", "<!-- /balance -->", balance_table())
    put_between(PAGE, "<!-- disturbance -->", "<!-- /disturbance -->", disturbance_table())


if __name__ == "__main__":
    main(sys.argv[1:])
