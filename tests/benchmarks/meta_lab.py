"""The meta-network on real lab runs: `python -m tests.benchmarks.meta_lab [again]` (needs root, about seven minutes).

In each window a plan runs for some steps, and a dozen candidates are measured after it. Graded are the rank correlation of
predicted and measured gains, and the regret of running the candidate with the best prediction: by the shipped network, by the
network after fine-tuning on all other windows, by the simulator, and by always choosing the running plan or the default.
Kept under results/published/meta-lab.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from scipy.stats import spearmanr

from autotune.online.learning import Case, Memory
from autotune.online.meta_network import MetaNetwork
from autotune.results.store.store import read_json
from autotune.workloads.plan import Plan
from tests.benchmarks.prediction import ROOT, in_lab, lab
from tests.benchmarks.published_table import put_between

PUBLISHED = ROOT / "results" / "published" / "meta-lab"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.meta_lab"
JOBS = (("vgg", "mixed4"), ("vgg", "slow-link4"), ("gpt", "slow-link4"), ("vgg", "mixed-both4"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LabWindow:
    """The features of a window and its candidates, and their measured and simulated step times."""

    running: int
    default: int
    plans: tuple[Plan, ...]
    window: tuple[float, ...]
    """The features of the window."""
    rows: tuple[tuple[float, ...], ...]
    """The features of each candidate."""
    measured_s: tuple[float, ...]
    simulated_s: tuple[float, ...]

    def gains(self) -> list[float]:
        """log(throughput / throughput of the running plan), as measured."""
        return [float(np.log(self.measured_s[self.running] / seconds)) for seconds in self.measured_s]

    def predictions(self, network: MetaNetwork) -> list[float]:
        rows = np.array(self.rows, np.float32)
        return [float(value) for value in network.predict(np.array(self.window, np.float32), rows).mean]

    def cases(self) -> list[Case]:
        window = np.array(self.window, np.float32)
        return [
            Case(window=window, row=np.array(row, np.float32), predicted=0.0, measured=gain)
            for row, gain in zip(self.rows, self.gains(), strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabWindows:
    """The windows of one workload in one lab."""

    command: str
    workload: str
    cluster: str
    label: str
    windows: tuple[LabWindow, ...]
    environment: dict[str, str] = field(default_factory=dict)


def regret(window: LabWindow, chosen: int) -> float:
    """Throughput lost against the best candidate."""
    return 1 - min(window.measured_s) / window.measured_s[chosen]


def graded(windows: Sequence[LabWindow], predictions: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Median rank correlation, mean and largest regret."""
    ranks = [
        float(spearmanr(predicted, window.gains()).statistic)
        for window, predicted in zip(windows, predictions, strict=True)
    ]
    lost = [regret(window, int(np.argmax(predicted))) for window, predicted in zip(windows, predictions, strict=True)]
    return median(ranks), fmean(lost), max(lost)


def tuned(windows: Sequence[LabWindow]) -> list[list[float]]:
    """For each window the predictions of a network that was fine-tuned on all others."""
    found = []
    for left_out in windows:
        memory = Memory(MetaNetwork.shipped())
        for window in windows:
            if window is not left_out:
                for case in window.cases():
                    memory.learn(case)
        found.append(left_out.predictions(memory.network))
    return found


def table(windows: Sequence[LabWindow]) -> str:
    shipped = MetaNetwork.shipped()
    predictions = {
        "the meta-network, as shipped": [window.predictions(shipped) for window in windows],
        "the meta-network, fine-tuned on the other windows": tuned(windows),
        "the simulator, links and devices as stated": [[-seconds for seconds in w.simulated_s] for w in windows],
    }
    rows = ["| chosen by | rank correlation, median | regret, mean | regret, largest |", "|---|---|---|---|"]
    for name, predicted in predictions.items():
        rank, mean, worst = graded(windows, predicted)
        rows.append(f"| {name} | {rank:.2f} | {100 * mean:.1f} % | {100 * worst:.0f} % |")
    for name, chosen in (("always the running plan", "running"), ("always the default", "default")):
        lost = [regret(window, getattr(window, chosen)) for window in windows]
        rows.append(f"| {name} | - | {100 * fmean(lost):.1f} % | {100 * max(lost):.0f} % |")
    count = sum(len(window.plans) for window in windows)
    return "\n".join([*rows, "", f"{len(windows)} windows, {count} measured candidates; lab, paced devices."])


def main(words: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for workload, cluster in () if words == ["again"] else JOBS:
        out = PUBLISHED / f"{workload}@{cluster}.json"
        with lab(cluster):
            in_lab([sys.executable, "-m", PROGRAM, workload, cluster, str(out)])
    kept = [read_json(LabWindows, path) for path in sorted(PUBLISHED.glob("*.json"))]
    found = table([window for one in kept for window in one.windows])
    put_between(PAGE, "<!-- meta-lab -->", "<!-- /meta-lab -->", found)


if __name__ == "__main__":
    main(sys.argv[1:])
