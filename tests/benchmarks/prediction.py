"""The accuracy of predictions: random plans are measured in the lab and paced, then compared with the simulator.

Costs come from profiles measured beforehand; no compared plan was used for them. What-if clusters are predicted from
the profile of another cluster and measured afterwards. `nox -s prediction` runs it all (needs root, some 25 minutes) and
keeps every pair, the good and the bad, under results/published/prediction.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from autotune.jobs.context import capture_workload, with_held_bytes
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import Profile
from autotune.results.store.profile_file import load_profile
from autotune.results.store.store import read_json, write_json
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.registry import load_workload
from tests.benchmarks.accuracy import KNOBS, Pair, summary
from tests.benchmarks.measured import MeasuredPlans
from tests.benchmarks.published_table import put_between
from tests.benchmarks.scatter import scatter

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published" / "prediction"
PROGRAM = "tests.benchmarks.programs.measure_plans"
CLUSTER_FILES = ROOT / "tests" / "benchmarks" / "clusters"
WORKLOADS = ("vgg", "gpt", "resnet")
CLUSTERS = ("mixed4", "slow-link4", "mixed-both4")
PLANS_PER_CELL = 7
WHAT_IF = ("other-speeds4", "other-bandwidth4", "three-ranks")
PROFILED = "mixed4"
"""The cluster from whose profile those and paced runs are predicted."""
PACED_PROFILES = "paced-profiles"
DRAW = "third"
"""A changed model is graded on new plans: another text draws other plans."""
PLANS_PER_WHAT_IF = 4
LABELS = {
    "lab": "lab, paced devices; costs from a profile of that cluster",
    "paced": "emulated; costs from a profile of mixed4, which share their model with the emulation",
    "what_if": "lab, clusters never profiled; costs from a profile of mixed4",
}
PAGE = ROOT / "docs" / "simulator.md"


def pairs_of(measured: MeasuredPlans, profiles: list[Profile]) -> list[Pair]:
    """Every measured plan with its prediction."""
    workload = load_workload(measured.workload.name, dict(measured.workload.options))
    graph = with_held_bytes(capture_workload(workload, 0), workload, 0)
    simulator = Simulator(measured.workload, graph, cost_model(graph, measured.cluster, profiles))
    pairs = []
    for record in measured.records:
        if record.step_s is None:
            continue
        simulated = simulator.simulate(record.plan)
        pairs.append(
            Pair(
                workload=measured.workload.name,
                cluster=measured.cluster.name,
                label=measured.cluster.label,
                plan=record.plan,
                predicted_s=simulated.step_s,
                measured_s=record.step_s,
                steps_s=record.steps_s,
                predicted_bytes=float(simulator.peak_memory_bytes(record.plan, simulated).max()),
                measured_bytes=float(max(rank.peak_memory_bytes for rank in record.ranks)),
            )
        )
    return pairs


def measure_lab(folder: Path, say: Callable[[str], None]) -> None:
    """Profiles, then plans."""
    for cluster in CLUSTERS:
        with lab(cluster):
            for workload in WORKLOADS:
                say(f"lab: {workload} on {cluster}")
                profile(in_lab, folder, workload, cluster)
                plans(in_lab, folder, workload, cluster, "lab", PLANS_PER_CELL)


def measure_paced(folder: Path, say: Callable[[str], None]) -> None:
    for workload in WORKLOADS:
        say(f"paced: profile of {workload} on {PROFILED}")
        profile(paced, folder / PACED_PROFILES, workload, PROFILED)
    for cluster in CLUSTERS:
        for workload in WORKLOADS:
            say(f"paced: {workload} on {cluster}")
            plans(paced, folder, workload, cluster, "paced", PLANS_PER_CELL)


def measure_what_if(folder: Path, say: Callable[[str], None]) -> None:
    for cluster in WHAT_IF:
        with lab(str(CLUSTER_FILES / f"{cluster}.toml")):
            for workload in WORKLOADS:
                say(f"lab, what if: {workload} on {cluster}")
                plans(in_lab, folder, workload, str(CLUSTER_FILES / f"{cluster}.toml"), "lab", PLANS_PER_WHAT_IF)


KINDS = {"lab": measure_lab, "paced": measure_paced, "what_if": measure_what_if}


def profile(run: Callable[[list[str]], None], folder: Path, workload: str, cluster: str) -> None:
    job = ["--workload", workload, "--cluster", cluster, "--results", str(folder), "--quiet"]
    run([autotune(), "profile", *job])


def plans(  # noqa: PLR0913, PLR0917 - what, where and how many
    run: Callable[[list[str]], None], folder: Path, workload: str, cluster: str, kind: str, count: int
) -> None:
    """Every cell has a seed of its own: other plans on other clusters."""
    cell = f"{workload}@{Path(cluster).stem}"
    out = folder / f"{kind}-{cell}.json"
    run([sys.executable, "-m", PROGRAM, workload, cluster, str(out), "random", str(count), f"{DRAW} {kind}/{cell}"])


def autotune() -> str:
    return str(Path(sys.executable).with_name("autotune"))


@contextmanager
def lab(cluster: str) -> Iterator[None]:
    subprocess.run(
        [autotune(), "lab", "up", "--name", "pr", "--cluster", cluster], check=True, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        subprocess.run([autotune(), "lab", "down", "--name", "pr"], check=True, stdout=subprocess.DEVNULL)


def in_lab(command: list[str]) -> None:
    _run([autotune(), "lab", "run", "--name", "pr", "--", *command])


def paced(command: list[str]) -> None:
    flags = ["--bind-to", "none", "--allow-run-as-root", "--oversubscribe", "-n", "4"]
    _run([str(Path(sys.executable).with_name("mpirun")), *flags, *command])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def profiles_in(folder: Path, workload: str, cluster: str, label: str) -> list[Profile]:
    """Measured where the plans ran."""
    found = [load_profile(path) for path in sorted((folder / "profiles").glob(f"{workload}@{cluster}-*.json"))]
    return [profile for profile in found if profile.label == label]


def judge(folder: Path) -> dict[str, Any]:
    """Predictions of everything measured, by kind of run."""
    kinds: dict[str, list[Pair]] = {"lab": [], "paced": [], "what_if": []}
    failed: list[str] = []
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("*@*.json")):
        measured = read_json(MeasuredPlans, path)
        kind = path.name.partition("-")[0]
        is_question = measured.cluster.name in WHAT_IF
        source = measured.cluster.name if kind == "lab" and not is_question else PROFILED
        kept = folder / PACED_PROFILES if kind == "paced" else folder
        profiles = profiles_in(kept, measured.workload.name, source, measured.cluster.label)
        kinds["what_if" if is_question else kind] += pairs_of(measured, profiles)
        failed += [f"{path.stem}: {record.plan} {record.reason}" for record in measured.records if not record.step_s]
        seconds[path.stem] = sum(record.duration_s for record in measured.records)
    return {
        "command": "nox -s prediction",
        "environment": describe_environment(),
        "figures": {kind: summary(pairs) for kind, pairs in kinds.items() if pairs},
        "failed": failed,
        "measured_for_s": seconds,
        "pairs": kinds,
    }


def table(figures: dict[str, Any]) -> str:
    """What the page on the simulator says."""
    lines = [
        (
            "| runs | plans | median error | worst | rank correlation: all, per cell | first-ranked plan loses: median, worst "
            "| beyond noise | memory, worst error |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, found in figures.items():
        losses = found["first_ranked_loses"].values()
        worst = max(losses, key=lambda loss: loss.value)
        cells = (
            LABELS[kind],
            str(found["plans"]),
            percent(found["median_error"]),
            f"{100 * found['worst_error']:.0f} %",
            f"{found['spearman_all']:.3f}, {found['spearman_per_cell_median']:.2f}",
            f"{percent(median(loss.value for loss in losses))}, {percent(worst.value)} ({percent(worst.low)} to {percent(worst.high)})",
            f"in {len(found['first_ranked_misses'])} of {len(losses)} cells",
            percent(found["memory_worst_error"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def knob_table(figures: dict[str, Any]) -> str:
    """Median error (and plans) of each kind of knob, by kind of run."""
    lines = ["| plans with | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
    for knob in KNOBS:
        found = [figures[kind]["per_knob"].get(knob) for kind in figures]
        if any(found):
            cells = [f"{percent(of['median_error'])} ({of['plans']})" if of else "none" for of in found]
            lines.append(f"| {knob} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    folder = ROOT / "results" / "data" / "prediction"
    if sys.argv[1:] != ["again"]:
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        for kind in sys.argv[1:] or KINDS:
            KINDS[kind](folder, lambda text: sys.stderr.write(f"{(time.monotonic() - begun) / 60:.1f} min  {text}\n"))
    found = judge(folder)
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    write_json(PUBLISHED / "pairs.json", found)
    for kind, pairs in found["pairs"].items():
        if pairs:
            points = [(pair.workload, pair.predicted_s, pair.measured_s) for pair in pairs]
            (PUBLISHED / f"{kind}.svg").write_text(scatter(points, f"{len(pairs)} plans, {LABELS[kind]}"))
    shown = f"{table(found['figures'])}\n\n{knob_table(found['figures'])}"
    put_between(PAGE, "<!-- prediction -->", "<!-- /prediction -->", shown)
    sys.stdout.write("\n".join([shown, *(f"not measured: {text}" for text in found["failed"])]) + "\n")


if __name__ == "__main__":
    main()
