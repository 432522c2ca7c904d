"""`autotune advise`: is another device, or a faster link, worth it; which devices of a pool to use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autotune.jobs.advise.candidates import as_edits, usual_changes
from autotune.jobs.advise.changes import Planner, advise_changes
from autotune.jobs.advise.measured import check_measurable, measured_step_s
from autotune.jobs.advise.subsets import advise_subsets
from autotune.jobs.predict import predictor_source
from autotune.jobs.question import Aim, Question
from autotune.results.store.advice import Advice, Advised, Subset
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import InfeasiblePlanError, SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviseJob(Question):
    """`what_if`: of each change that is asked for, its edits separated by commas; none: the usual ones."""

    pool: str | None = None
    """A cluster whose devices can be added."""
    subsets: bool = False
    """Which hosts of the cluster, instead of which changes."""
    measure: bool = False


def advise(job: AdviseJob, aim: Aim, say: Callable[[str], None]) -> Advised:
    """Every change, or every subset, with its best plan."""
    if job.subsets and (job.what_if or job.pool is not None):
        raise SpecError(
            "--subsets compares the hosts of --cluster, and changes nothing: leave out --add, --remove, --replace, "
            "--what-if and --pool, or leave out --subsets"
        )
    pool = load_cluster(job.pool) if job.pool is not None else None
    if job.measure:
        check_measurable(load_cluster(job.clusters[0]))
    question = replace(job, what_if=())
    source = predictor_source(question)
    setting = replace(source.setting, pool=pool)
    measure = partial(measured_step_s, question) if job.measure else None
    planner = Planner(question=question, aim=aim, source=source, measure=measure)
    answer = Advised(workload=job.workload_name, cluster=setting.cluster.name, label="predicted, not measured")
    if job.subsets:
        subsets, is_complete = advise_subsets(planner, setting, say)
        _check_any_fits(subsets)
        return replace(answer, subsets=tuple(subsets), is_complete=is_complete)
    changes = as_edits(job.what_if) if job.what_if else usual_changes(setting)
    found = advise_changes(planner, setting, changes, say)
    _check_any_fits(found)
    return replace(answer, changes=tuple(found))


def _check_any_fits(found: Sequence[Advice | Subset]) -> None:
    if all(one.forecast is None for one in found):
        raise InfeasiblePlanError(found[0].limited_by)
