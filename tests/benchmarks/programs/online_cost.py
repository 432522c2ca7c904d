"""Run by mpirun: one retuned run, with an account of what retuning costs on every rank.

online_cost.py WORKLOAD CLUSTER OUT.json SCENARIO STEPS
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.jobs.online_job import make_controller
from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import Decision
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.network import Network, Topic
from autotune.runtime.control.step_directives import StepCoordinator, StepReport
from autotune.runtime.control.wire import HEADER_BYTES
from autotune.runtime.trial import runner
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.serial import from_data, to_data
from autotune.workloads.split import proportional
from tests.benchmarks.online_cost import Account, OnlineCost, Taken
from tests.benchmarks.retuned_runs import on_context, trained

BUCKET_BYTES = 1 << 18


def num_interruptions() -> int:
    """Involuntary context switches of this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class CountingTopic:
    """A topic that counts the bytes of its messages, with those of their frames."""

    def __init__(self, topic: Topic, num_children: int) -> None:
        self._topic, self._num_children = topic, num_children
        self.close, self.num_bytes = topic.close, 0

    def to_parent(self, payload: bytes) -> None:
        self.num_bytes += len(payload) + HEADER_BYTES
        self._topic.to_parent(payload)

    def to_root(self, payload: bytes) -> None:
        self._topic.to_root(payload)

    def to_all(self, payload: bytes) -> None:
        """Relayed by other ranks too, each of which receives it once."""
        self.num_bytes += self._num_children * (len(payload) + HEADER_BYTES)
        self._topic.to_all(payload)


class CountingCoordinator(StepCoordinator):
    """A step coordinator that counts its bytes and its CPU time."""

    accounts: ClassVar[list[Account]] = []

    def __init__(self, network: Network, *args: Any, **kwargs: Any) -> None:
        self._cpu_s, self._begun_cpu_s = 0.0, time.process_time()
        super().__init__(network, *args, **kwargs)
        self._counting = self._topic = CountingTopic(self._topic, network.size - 1)  # type: ignore[assignment]

    def report(self, report: StepReport) -> None:
        self._counted(super().report, report)

    def from_child(self, child: int, payload: bytes) -> None:
        self._counted(super().from_child, child, payload)

    def from_root(self, payload: bytes) -> None:
        self._counted(super().from_root, payload)

    def _publish_next(self, step: int, complete: dict[int, bytes]) -> None:
        self._counted(super()._publish_next, step, complete)

    def close(self) -> None:
        total_cpu_s = time.process_time() - self._begun_cpu_s
        super().close()
        account = Account(num_bytes=self._counting.num_bytes, cpu_s=self._cpu_s, total_cpu_s=total_cpu_s)
        self.accounts.append(account)

    def _counted(self, call: Callable[..., None], *arguments: Any) -> None:
        begun_s = time.thread_time()
        call(*arguments)
        self._cpu_s += time.thread_time() - begun_s


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
    shared = control.share(to_data(CountingCoordinator.accounts[-1]))
    accounts = [from_data(Account, one, "account") for one in shared]
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
