"""Run by mpirun: one retuned run, with an account of what retuning costs on every rank.

online_cost.py WORKLOAD CLUSTER OUT.json SCENARIO STEPS
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any, ClassVar

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.jobs.online_job import make_controller
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import Decision
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.step_directives import StepCoordinator, StepReport
from autotune.runtime.trial import runner
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.split import proportional
from tests.benchmarks.online_cost import Account, OnlineCost, Taken
from tests.benchmarks.retuned_runs import on_context, trained

FRAME_BYTES = 4
BUCKET_BYTES = 1 << 18


def num_interruptions() -> int:
    """Involuntary context switches of this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class CountingCoordinator(StepCoordinator):
    """A step coordinator that counts its bytes and its CPU time."""

    accounts: ClassVar[list[Account]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._num_bytes, self._cpu_s, self._begun_cpu_s = 0, 0.0, time.process_time()
        super().__init__(*args, **kwargs)

    def report(self, report: StepReport) -> None:
        begun_s = time.thread_time()
        super().report(report)
        self._cpu_s += time.thread_time() - begun_s
        if self.rank:
            self._num_bytes += len(json.dumps(report.as_message())) + FRAME_BYTES

    def close(self) -> None:
        total_cpu_s = time.process_time() - self._begun_cpu_s
        super().close()
        account = Account(num_bytes=self._num_bytes, cpu_s=self._cpu_s, total_cpu_s=total_cpu_s)
        self.accounts.append(account)

    def _send_to_all(self, message: list[Any]) -> None:
        self._num_bytes += len(self._channels) * (len(json.dumps(message)) + FRAME_BYTES)
        super()._send_to_all(message)

    def _listen(self) -> None:
        super()._listen()
        self._cpu_s += time.thread_time()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("out", type=Path)
    parser.add_argument("scenario")
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    job = Job(
        workload=options.workload, clusters=(options.cluster,), results=options.out.parent, replay=options.scenario
    )
    runner.StepCoordinator = CountingCoordinator  # type: ignore[misc] # on every rank
    made: list[tuple[str, tuple[float, ...], list[Taken]]] = []

    def lead(context: JobContext) -> None:
        speeds = [device.flops_per_s or 1.0 for device in context.cluster.devices]
        samples = proportional(speeds, context.info.global_batch, context.limits)
        start = Plan(batch=BatchPlan(samples=samples), comm=CommPlan(bucket_bytes=BUCKET_BYTES))
        controller, taken_s = make_controller(job, context, start, lambda _: None), list[Taken]()

        def decide(row: StepRow) -> Decision | None:
            begun_s, begun_cpu_s, begun = time.perf_counter(), time.thread_time(), num_interruptions()
            decision = controller.decide(row)
            cpu_s, wall_s = time.thread_time() - begun_cpu_s, time.perf_counter() - begun_s
            taken_s.append(Taken(wall_s=wall_s, cpu_s=cpu_s, interruptions=num_interruptions() - begun))
            return decision

        done = trained(context, start, options.steps, decide)
        made.append((context.cluster.label, done.measured.steps_s, taken_s))

    control = on_context(job, lead)
    accounts = control.share(CountingCoordinator.accounts[-1])
    if made:
        label, steps_s, taken_s = made[0]
        found = OnlineCost(
            command="nox -s online_cost",
            label=label,
            num_steps=options.steps,
            steps_s=steps_s,
            decisions=tuple(taken_s),
            accounts=tuple(accounts),
            environment=describe_environment(),
        )
        write_json(options.out, found)


main()
