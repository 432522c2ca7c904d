"""The best plan per (workload, cluster), kept as readable JSON for reuse."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from autotune.results.store.command_line import first_sweep
from autotune.results.store.record import BestPlan
from autotune.results.store.store import read_json, write_json
from autotune.workloads.cluster import load_cluster, stated_name
from autotune.workloads.errors import SpecError
from autotune.workloads.files import safe_name
from autotune.workloads.registry import split_workload

BEST_FOLDER = "best"


def best_path(results: Path, workload: str, cluster: str) -> Path:
    """Where the best plan of that workload on that cluster is kept."""
    return results / BEST_FOLDER / f"{safe_name(workload)}@{safe_name(cluster)}.json"


def save_best(results: Path, best: BestPlan) -> Path:
    """Keep the plan for reuse, instead of the one that was kept before."""
    path = best_path(results, best.workload, best.cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, best)
    return path


def better_kept(results: Path, best: BestPlan) -> BestPlan | None:
    """The plan that another study has kept for the same job, if it gains more over the default, beyond noise."""
    path = best_path(results, best.workload, best.cluster)
    if not path.exists():
        return None
    kept = read_json(BestPlan, path)
    is_same_job = (kept.workload_fingerprint, kept.cluster_fingerprint) == (
        best.workload_fingerprint,
        best.cluster_fingerprint,
    )
    if not is_same_job or kept.study == best.study or not kept.speedup_interval or not best.speedup_interval:
        return None
    return kept if min(kept.speedup_interval) > max(best.speedup_interval) else None


def all_best(results: Path) -> list[tuple[Path, BestPlan]]:
    """Every kept plan with its file."""
    return [(path, read_json(BestPlan, path)) for path in sorted((results / BEST_FOLDER).glob("*.json"))]


def matching(
    kept: list[tuple[Path, BestPlan]], workload: str | None, cluster: str | None
) -> list[tuple[Path, BestPlan]]:
    """Those of a workload and a cluster, named as files do (with options and ranks) or as the user does (without)."""
    for same, on in product((_same_workload, _same_spec), (_same_cluster, _part_of)):
        found = [
            (path, plan)
            for path, plan in kept
            if (workload is None or same(workload, plan)) and (cluster is None or on(cluster, plan))
        ]
        if found:
            return found
    return []


def _same_workload(given: str, plan: BestPlan) -> bool:
    return split_workload(given) == split_workload(plan.workload)


def _same_spec(given: str, plan: BestPlan) -> bool:
    return given == split_workload(plan.workload)[0]


def _same_cluster(given: str, plan: BestPlan) -> bool:
    return given == plan.cluster


def _part_of(given: str, plan: BestPlan) -> bool:
    name = load_cluster(given).name if given.endswith(".toml") else given
    return name in (plan.cluster, stated_name(plan.cluster))


def load_best(results: Path, workload: str, cluster: str, *, sweep: str = "") -> BestPlan:
    """The kept plan of that workload on that cluster. `sweep`: the command that makes one."""
    path = best_path(results, workload, cluster)
    if not path.exists():
        raise SpecError(
            f"no best plan for workload {workload!r} on cluster {cluster!r} in {str(results)!r}: "
            f"run `{sweep or first_sweep(results, workload, cluster)}` first"
        )
    return read_json(BestPlan, path)


def check_made_for(
    best: BestPlan, *, workload_fingerprint: str, cluster_fingerprint: str, cluster: str, sweep: str = "autotune sweep"
) -> None:
    """Refuse a plan that was tuned for something else: it would run slowly. `sweep`: the command that makes the right one."""
    if best.cluster_fingerprint != cluster_fingerprint:
        anew = f" --study {safe_name(best.workload)}-{cluster_fingerprint}" if best.cluster == cluster else ""
        raise SpecError(
            f"the plan was made for cluster {best.cluster!r} ({best.cluster_fingerprint}) but the job runs on "
            f"{cluster!r} ({cluster_fingerprint}): run `{sweep}{anew}`, or name the cluster it was made for"
        )
    if best.workload_fingerprint != workload_fingerprint:
        raise SpecError(
            f"the plan was made for another version of workload {best.workload!r} ({best.workload_fingerprint}, now "
            f"{workload_fingerprint}): its model, batch or options have changed; run "
            f"`{sweep} --study {safe_name(best.workload)}-{workload_fingerprint}`"
        )
