"""What programs that train in one job context have in common: the job on all ranks, and one run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import Decision
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.control.step_directives import Decide
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import Training, follow
from autotune.workloads.plan import Plan

TIMEOUT_S = 900.0


def on_context(job: Job, lead: Callable[[JobContext], None]) -> Control:
    """Called by all ranks: rank 0 runs `lead`, the others follow until it is done."""
    control = start_control()
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return control
    lead(context)
    context.workers.dismiss()
    return control


def trained(context: JobContext, plan: Plan, num_steps: int, decide: Decide | None = None) -> Training:
    budget = Budget(warmup=0, steps=num_steps, timeout_s=TIMEOUT_S)
    return context.workers.train(plan, budget, lambda _: None, watched=False, decide=decide)


@dataclass
class Recorder:
    """A decision function that records its arguments."""

    decide: Decide
    rows: list[StepRow]

    def __call__(self, row: StepRow) -> Decision | None:
        self.rows.append(row)
        return self.decide(row)
