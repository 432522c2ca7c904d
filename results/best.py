"""The best plan per (workload, mix), kept as readable JSON for reuse: the point of the whole exercise."""

from __future__ import annotations

from pathlib import Path

from results.record import BestPlan
from results.store import read_json, safe_name, write_json
from workloads.errors import SpecError

BEST_FOLDER = "best"


def best_path(results: Path, workload: str, cluster: str) -> Path:
    """Where the best plan of that workload on that mix is kept."""
    return results / BEST_FOLDER / f"{safe_name(workload)}@{cluster}.json"


def save_best(results: Path, best: BestPlan) -> Path:
    path = best_path(results, best.workload, best.cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, best)
    return path


def all_best(results: Path) -> list[tuple[Path, BestPlan]]:
    """Every kept plan with its file."""
    return [(path, read_json(BestPlan, path)) for path in sorted((results / BEST_FOLDER).glob("*.json"))]


def load_best(results: Path, workload: str, cluster: str) -> BestPlan:
    """The kept plan of that workload on that mix."""
    path = best_path(results, workload, cluster)
    if not path.exists():
        raise SpecError(
            f"no best plan for workload {workload!r} on cluster {cluster!r} in {str(results)!r}: "
            f"run `autotune sweep --workload {workload} --cluster {cluster}` first"
        )
    return read_json(BestPlan, path)


def check_made_for(best: BestPlan, *, workload_fingerprint: str, cluster_fingerprint: str, cluster: str) -> None:
    """Refuse a plan that was tuned for something else: it would run, and be slow without a word."""
    if best.cluster_fingerprint != cluster_fingerprint:
        raise SpecError(
            f"the plan was made for cluster {best.cluster!r} ({best.cluster_fingerprint}) but the job runs on "
            f"{cluster!r} ({cluster_fingerprint}): run `autotune sweep` on this one, or name the cluster it was made for"
        )
    if best.workload_fingerprint != workload_fingerprint:
        raise SpecError(
            f"the plan was made for another version of workload {best.workload!r} ({best.workload_fingerprint}, now "
            f"{workload_fingerprint}): its model, batch or options have changed; run `autotune sweep` again"
        )
