"""How many training steps does tuning cost? Search methods on recorded grids, as if they measured.

Every plan of a grid was measured once in the lab (`measure_plans.py … grid`): torch DDP's default, then each bucket size
and transport with several splits. Each method then searches the same grid through the replay evaluator, five seeds each,
and is charged five steps a trial (two of them unscored). It has arrived when a plan it has measured takes at most 1/0.95
of the grid's best. Then our search runs live, once in each lab, with all the knobs it has, and its plan is measured beside the
grid's best (`live_tuning.py`). `nox -s tuning_cost` measures the grids (needs root, about 25 minutes), replays, searches live, and
keeps everything; a grid that is there is not measured again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import optuna

from autotune.jobs.context import capture_workload
from autotune.jobs.evaluate import ReplayedEvaluator, as_record
from autotune.results.judge.selection import fastest
from autotune.results.judge.stats import Ratio
from autotune.results.store.environment import describe_environment
from autotune.results.store.record import TrialRecord
from autotune.results.store.store import read_json, write_json
from autotune.runtime.trial.runner import Budget
from autotune.search.ranking import Ranking
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.space.space import Proposal, Space, max_bucket_log2
from autotune.workloads.plan import Plan, lossless_codecs
from autotune.workloads.registry import load_workload
from autotune.workloads.split import bounds
from tests.benchmarks.measured import MeasuredPlans
from tests.benchmarks.prediction import PAGE, PROGRAM, ROOT, in_lab, lab
from tests.benchmarks.published_table import put_between

PUBLISHED = ROOT / "results" / "published" / "tuning-cost"
LIVE = "tests.benchmarks.programs.live_tuning"

CELLS = (("vgg", "mixed4"), ("gpt", "mixed-both4"), ("resnet", "slow-link4"))
SEEDS = range(5)
STEPS = 200
BUDGET = Budget(warmup=2, steps=3, timeout_s=120)
NEAR = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveRun:
    """Our search on the ranks of a lab, and its plan interleaved with the grid's best and torch DDP's default."""

    num_steps: int
    """Training steps until it had enough."""
    steps_to_95_of_own_best: int
    plan: Plan
    of_grid_best: Ratio
    of_default: Ratio


Method = Callable[[MeasuredPlans, ReplayedEvaluator, int], Iterator[TrialRecord]]


def simulate_then_measure(grid: MeasuredPlans, evaluator: ReplayedEvaluator, seed: int) -> Iterator[TrialRecord]:
    """Ours: the default, then what corrected predictions speak for. Nothing in it is drawn, so seeds do not matter."""
    del seed
    workload = load_workload(grid.workload.name, dict(grid.workload.options))
    graph = capture_workload(workload, 0)
    ranking = Ranking(Simulator(grid.workload, graph, cost_model(graph, grid.cluster)), space_of(grid))
    records: list[TrialRecord] = []
    default, *others = by_default_first(evaluator.plans)
    while len(records) <= len(others):
        left = [plan for plan in others if plan not in {record.plan for record in records}]
        plan = ranking.pick(left, records, explore=len(records) % 2 == 0).plan if records else default
        records.append(measure(evaluator, plan, len(records)))
        yield records[-1]


def with_optuna(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> Method:
    """A study over split, bucket and transport; points outside the grid do not exist."""

    def method(grid: MeasuredPlans, evaluator: ReplayedEvaluator, seed: int) -> Iterator[TrialRecord]:
        plans = {coordinates(plan): plan for plan in evaluator.plans}
        splits = sorted({split for split, _, _ in plans})
        study = optuna.create_study(direction="minimize", sampler=sampler(seed))
        for number in count():
            trial = study.ask()
            key = (
                splits[trial.suggest_categorical("split", list(range(len(splits))))],
                trial.suggest_categorical("transport", sorted({transport for _, transport, _ in plans if transport})),
                trial.suggest_categorical("bucket_log2", bucket_sizes(plans)),
            )
            plan = plans.get(key)
            if plan is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            record = measure(evaluator, plan, number)
            assert record.step_s is not None
            study.tell(trial, record.step_s)
            yield record

    return method


METHODS: dict[str, Method] = {
    "simulate, then measure": simulate_then_measure,
    "Optuna TPE": with_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "Optuna GP": with_optuna(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "random": with_optuna(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


def measure(evaluator: ReplayedEvaluator, plan: Plan, number: int) -> TrialRecord:
    return as_record(number, Proposal(plan=plan), evaluator.evaluate(plan, BUDGET), started_at="", duration_s=0.0)


def coordinates(plan: Plan) -> tuple[tuple[int, ...], str, int]:
    """Torch DDP's default is one point more, with a transport of no name."""
    transport = plan.comm.transport if plan.comm.reducer != "ddp" else ""
    return plan.batch.samples, transport, plan.comm.bucket_bytes.bit_length() - 1


def bucket_sizes(plans: dict[tuple[tuple[int, ...], str, int], Plan]) -> list[int]:
    return sorted({bucket for _, transport, bucket in plans if transport})


def by_default_first(plans: list[Plan]) -> list[Plan]:
    return sorted(plans, key=lambda plan: plan.comm.reducer != "ddp")


def space_of(grid: MeasuredPlans) -> Space:
    size, total = len(grid.cluster.devices), grid.workload.global_batch
    return Space(
        global_batch=total,
        limits=bounds(size, total),
        reference=(1.0,) * size,
        transports=("gloo", "mpi"),
        codecs=lossless_codecs(),
        max_bucket_log2=max_bucket_log2(grid.workload.param_bytes),
    )


def complete_of(grid: MeasuredPlans) -> list[TrialRecord]:
    return [record for record in grid.records if record.step_s is not None]


def best_of(grid: MeasuredPlans) -> TrialRecord:
    return min(complete_of(grid), key=lambda record: record.step_s or 0.0)


def default_of(grid: MeasuredPlans) -> TrialRecord:
    return next(record for record in complete_of(grid) if record.plan.comm.reducer == "ddp")


def replay(grid: MeasuredPlans, method: Method, seed: int) -> dict[str, Any]:
    """One search of up to 200 steps: when it arrived, and what it would keep in the end."""
    complete, best_s, default_s = complete_of(grid), best_of(grid).step_s, default_of(grid).step_s
    assert best_s is not None
    assert default_s is not None
    evaluator, records, arrived = ReplayedEvaluator(complete), list[TrialRecord](), None
    for record in method(grid, evaluator, seed):
        records.append(record)
        if arrived is None and record.step_s is not None and best_s / record.step_s >= NEAR:
            arrived = evaluator.num_steps
        if evaluator.num_steps + BUDGET.warmup + BUDGET.steps > STEPS or len(records) >= len(complete):
            break
    kept = fastest(records)
    assert kept is not None
    assert kept.step_s is not None
    return {"steps_to_95": arrived, "of_best": best_s / kept.step_s, "of_default": default_s / kept.step_s}


def judge(folder: Path) -> dict[str, Any]:
    """Every method on every grid."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    figures: dict[str, Any] = {}
    for path in sorted(folder.glob("grid-*.json")):
        grid = read_json(MeasuredPlans, path)
        cell = f"{grid.workload.name}@{grid.cluster.name}"
        figures[cell] = {"plans": len(grid.records), "label": grid.cluster.label}
        for name, method in METHODS.items():
            runs = [replay(grid, method, seed) for seed in SEEDS]
            steps = [run["steps_to_95"] if run["steps_to_95"] is not None else STEPS + 1 for run in runs]
            figures[cell][name] = {
                "median_steps_to_95": median(steps),
                "steps_to_95": [run["steps_to_95"] for run in runs],
                "median_of_best": median(run["of_best"] for run in runs),
                "least_of_default": min(run["of_default"] for run in runs),
            }
        if (live := live_file(path)).exists():
            figures[cell]["live"] = read_json(LiveRun, live)
    return {"command": "nox -s tuning_cost", "environment": describe_environment(), "figures": figures}


def table(figures: dict[str, Any]) -> str:
    """What the page on the simulator says: medians over the seeds."""
    lines = [
        "| workload, cluster | plans | " + " | ".join(METHODS) + " | ours, live |",
        "|---|---|" + "---|" * (len(METHODS) + 1),
    ]
    for cell, found in figures.items():
        cells = [*(_cell(found[name]) for name in METHODS), _live_cell(found.get("live"))]
        lines.append(f"| {cell} ({found['label']}) | {found['plans']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    steps = found["median_steps_to_95"]
    arrived = f"{steps:g} steps" if steps <= STEPS else f"not in {STEPS}"
    return f"{arrived}; {100 * found['median_of_best']:.0f} % of the best, {found['least_of_default']:.2f}x the default at least"


def _live_cell(live: LiveRun | None) -> str:
    if live is None:
        return "not run"
    ratio = live.of_grid_best
    return (
        f"ended after {live.num_steps} steps; {ratio.value:.3f}x the grid's best ({ratio.low:.3f}-{ratio.high:.3f}), "
        f"{live.of_default.value:.2f}x the default"
    )


def live_file(grid: Path) -> Path:
    return grid.with_name(grid.name.replace("grid-", "live-"))


def measure_all() -> None:
    """Grids that are not there yet, and a live search each."""
    for workload, cluster in CELLS:
        grid = PUBLISHED / f"grid-{workload}@{cluster}.json"
        with lab(cluster):
            if not grid.exists():
                in_lab([sys.executable, "-m", PROGRAM, workload, cluster, str(grid), "grid"])
            in_lab([sys.executable, "-m", LIVE, str(grid), str(live_file(grid))])


def main() -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] != ["again"]:
        measure_all()
    found = judge(PUBLISHED)
    write_json(PUBLISHED / "figures.json", found)
    put_between(PAGE, "<!-- tuning -->", "<!-- /tuning -->", table(found["figures"]))
    sys.stdout.write(table(found["figures"]) + "\n")


if __name__ == "__main__":
    main()
