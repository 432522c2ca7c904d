"""What programs that train on a bench have in common: the job on all ranks, and one run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.runtime.control import Control, start_control
from autotune.runtime.crew import Training, follow
from autotune.runtime.pilot import Decide
from autotune.runtime.trial import Effort
from profilers.step_stats import StepRow
from results.decision import Decision
from workloads.plan import Plan

TIMEOUT_S = 900.0


def on_bench(job: Job, lead: Callable[[Bench], None]) -> Control:
    """Called by all ranks; rank 0 leads, and all meet again afterwards."""
    control = start_control()
    (cluster,) = check_job(job, control.size)
    bench = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, bench.runner)
        return control
    lead(bench)
    bench.crew.dismiss()
    return control


def trained(bench: Bench, plan: Plan, num_steps: int, decide: Decide | None = None) -> Training:
    effort = Effort(warmup=0, steps=num_steps, timeout_s=TIMEOUT_S)
    return bench.crew.train(plan, effort, lambda _: None, watched=False, decide=decide)


@dataclass
class Noted:
    """Somebody who decides, and every row that they were told."""

    decide: Decide
    rows: list[StepRow]

    def __call__(self, row: StepRow) -> Decision | None:
        self.rows.append(row)
        return self.decide(row)
