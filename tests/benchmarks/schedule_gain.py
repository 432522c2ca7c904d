"""The gain of priority, cross-step overlap and sufficient factors if communication takes 0.5, 1 and 2 times the compute time.

`nox -s schedule_gain` (needs root) makes a lab for every workload and ratio, with links just fast enough, and keeps every
contender of every cell, with its ideal, under results/published/schedule-gain; `-- vgg 0.5` measures one workload, or one
cell, `-- again` makes the table of what is kept.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from autotune.jobs.context import capture_workload
from autotune.results.judge.stats import Ratio, speedup
from autotune.results.store.store import read_json
from autotune.simulate.roofline import compute_s
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.plan import Plan
from autotune.workloads.registry import load_workload
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published" / "schedule-gain"
PAGE = ROOT / "docs" / "scheduling.md"
PROGRAM = "tests.benchmarks.programs.schedule_gain"
WORKLOADS = ("vgg", "gpt")
RATIOS = (0.5, 1.0, 2.0)
SPEED = 0.8
"""Of each device, in 10^9 operations and bytes a second: so slow that the real work of four ranks on two cores, gloo's included,
hides in the sleeps."""
BASELINE = "DDP, best bucket"
NAMES = ("plain overlap", BASELINE, "priority and cross-step overlap", "with factors", "everything")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One plan in one cell."""

    name: str
    plan: Plan
    rounds_s: tuple[float, ...]
    """The mean step of each round; the rounds of all contenders are interleaved."""
    ideal_s: float
    """The same plan without any overhead."""
    cpu_s: float
    """CPU time of a step, all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GainCell:
    """One workload on links of one speed."""

    workload: str
    cluster: Cluster
    label: str
    contenders: tuple[Contender, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def ratio(self, name: str) -> Ratio | None:
        rounds = {one.name: one.rounds_s for one in self.contenders}
        return speedup(rounds[BASELINE], rounds[name]) if name in rounds else None


def cluster_text(workload: str, ratio: float) -> str:
    """Four equal devices; a ring takes `ratio` times as long as computing an even share of the batch."""
    loaded = load_workload(workload, {})
    graph, device = capture_workload(loaded, 0), load_cluster("uniform4").devices[0]
    slower = replace(device, flops_per_s=SPEED * 1e9, memory_bytes_per_s=SPEED * 1e9)
    seconds = compute_s(graph, slower, loaded.global_batch // 4)
    mbit = 1.5 * graph.param_bytes / (ratio * seconds) * 8 / 1e6
    speed = f"{mbit:.4g} Mbit/s"
    lines = [
        'emulation = "paced"',
        "[device.fast]",
        f'flops = "{SPEED:g} GFLOP/s"',
        f'memory_bandwidth = "{SPEED:g} GB/s"',
        'memory = "1 GiB"',
    ]
    for number in range(4):
        lines += ["[[host]]", f'name = "host{number}"', 'devices = ["fast"]']
        lines += [f'uplink = "{speed}"', f'downlink = "{speed}"', 'latency = "50 us"']
    return "\n".join(lines) + "\n"


def measure(folder: Path, workloads: Sequence[str], ratios: Sequence[float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    autotune = str(Path(sys.executable).with_name("autotune"))
    for workload in workloads:
        for ratio in ratios:
            cluster = folder / f"{workload}-x{ratio:g}.toml"
            cluster.write_text(cluster_text(workload, ratio))
            subprocess.run([autotune, "lab", "up", "--name", "gain", "--cluster", str(cluster)], check=True)
            try:
                command = [sys.executable, "-m", PROGRAM, workload, str(cluster), str(cluster.with_suffix(".json"))]
                subprocess.run([autotune, "lab", "run", "--name", "gain", "--", *command], check=True, cwd=ROOT)
            finally:
                subprocess.run([autotune, "lab", "down", "--name", "gain"], check=True)


def table(folder: Path) -> str:
    """Per cell: step of DDP's best, and how many times faster the others are, with how much of their ideal they reach."""
    lines = [
        "| workload | communication / computing | label | " + " | ".join(NAMES) + " |",
        "|---|---|---|" + "---|" * len(NAMES),
    ]
    for workload in WORKLOADS:
        for ratio in RATIOS:
            path = folder / f"{workload}-x{ratio:g}.json"
            if path.exists():
                cell = read_json(GainCell, path)
                shown = " | ".join(_shown(cell, name) for name in NAMES)
                lines.append(f"| {workload} | {ratio:g} | {cell.label} | {shown} |")
    return "\n".join(lines)


def _shown(cell: GainCell, name: str) -> str:
    one = next((one for one in cell.contenders if one.name == name), None)
    ratio = cell.ratio(name)
    if one is None or ratio is None:
        return "factors do not pay"
    step_s = median(one.rounds_s)
    reached = f"{one.ideal_s / step_s:.0%} of ideal, {one.cpu_s:.2f} CPU-s"
    if name == BASELINE:
        return f"{1000 * step_s:.0f} ms, {reached}"
    text = f"{ratio.value:.3f}x ({ratio.low:.3f}-{ratio.high:.3f})"
    return f"{'**' + text + '**' if ratio.verdict == 'faster' else text}, {reached}"


def main() -> None:
    if sys.argv[1:] != ["again"]:
        named = sys.argv[1:]
        ratios = [ratio for ratio in RATIOS if f"{ratio:g}" in named]
        measure(PUBLISHED, [name for name in WORKLOADS if name in named] or WORKLOADS, ratios or RATIOS)
    text = table(PUBLISHED)
    put_between(PAGE, "<!-- gain -->", "<!-- /gain -->", text)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
