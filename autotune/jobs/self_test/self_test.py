"""The self-test: what every rank of a job checks before it is trusted with real devices, in the order in which things break.

Software and devices, sums over each transport, messages between ranks, a known kernel, memory, the driver's counters, and last a
failure on purpose. All ranks run the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from autotune.jobs.self_test import judge
from autotune.jobs.self_test.check import Check, Runner
from autotune.jobs.self_test.device_map import (
    RankDevice,
    RankDevices,
    Software,
    judge_devices,
    judge_software,
    rank_device,
    software,
    take_places,
)
from autotune.jobs.self_test.failing_job import KILLED, RAISED
from autotune.jobs.self_test.failure import (
    LIMIT_S,
    FailingJob,
    FailureFacts,
    fail_on_purpose,
    judge_failure,
    meeting_point,
)
from autotune.jobs.self_test.finding import NOTE, Finding
from autotune.runtime.control.mpi import Control
from autotune.runtime.device import visible
from autotune.runtime.launch.device_choice import VisibleDevices
from autotune.runtime.probe.counter_probe import CounterFacts, read_counters
from autotune.runtime.probe.kernel_probe import KernelFacts, time_kernel
from autotune.runtime.probe.memory_probe import MemoryFacts, meter_memory
from autotune.runtime.probe.message_probe import MessageFacts, exchange_messages
from autotune.runtime.probe.sum_probe import SumFacts, check_sums
from autotune.runtime.probe.timed_collectives import GroupMember
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import TRANSPORTS, cpu_transports
from autotune.workloads.plan.choices import transports_for

T = TypeVar("T")
_GROUP_S = 30.0
"""Less than the limit of a check, so that a wait for a rank that does not come ends by itself."""
_MESSAGE_S = 5.0
_FIRST_USE_S = 60.0
"""The first use of a device loads its driver's libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """What the self-test has found; the same on every rank but for `has_hung`."""

    findings: tuple[Finding, ...]
    has_hung: bool
    """Whether a thread of this rank hangs: the process must end without waiting for it."""


def self_test(
    control: Control, modules: Sequence[str] = (), watcher: Callable[[str], None] = lambda _: None
) -> SelfTest:
    """Called by all ranks together. `modules`: what --load names. `watcher`: is given the name of each check."""
    runner, found = Runner(control), list[Finding]()

    def run(check: Check[Any]) -> list[tuple[int, Any]]:
        watcher(check.what)
        outcome = runner.run(check)
        found.extend(outcome.findings)
        return outcome.facts

    run(Check(what="software", facts=Software, measure=software, judge=judge_software))
    seen = Check(what="devices", facts=VisibleDevices, measure=visible, judge=lambda _: [], limit_s=_FIRST_USE_S)
    own = dict(run(seen)).get(control.rank, VisibleDevices())
    devices = take_places(control, own)
    run(_device_check(control, devices))
    found.extend(devices.notes)
    groups = Groups(control, load_cluster("this-machine").for_ranks(control.size), devices.own)
    for check in _checks(control, devices, groups):
        run(check)
    for check in _failures(control, devices, modules):
        run(check)
    return SelfTest(findings=tuple(found), has_hung=runner.has_hung)


def transports_of(control: Control, devices: RankDevices) -> tuple[str, ...]:
    """Those that this job can open; those of its devices first."""
    kinds = [choice.type if choice.index is not None else "" for choice in devices.choices]
    return transports_for(kinds, [name for name in cpu_transports() if name != "mpi" or control.has_mpi])


def _device_check(control: Control, devices: RankDevices) -> Check[RankDevice]:
    measure = partial(rank_device, devices, control.rank)
    return Check(what="devices", facts=RankDevice, measure=measure, judge=judge_devices, limit_s=_FIRST_USE_S)


def _checks(control: Control, devices: RankDevices, groups: Groups) -> Iterator[Check[Any]]:
    size, on_device = control.size, _bound(devices)
    transports = transports_of(control, devices)
    is_staged = devices.own.is_accelerator

    def on_group(transport: str, measure: Callable[[GroupMember], T]) -> Callable[[], T]:
        def run() -> T:
            devices.own.bind()
            with groups.open(transport, timeout_s=_GROUP_S) as group:
                measured = measure(GroupMember(group=group, device=devices.own.device))
                del group
            return measured

        return run

    any_staged = any(choice.index is not None for choice in devices.choices)
    for name in transports:
        staged = any_staged and TRANSPORTS[name].device == "cpu"
        what = f"sums over {name}{', staged' if staged else ''}"
        others = ",".join(other for other in transports if other != name)
        yield Check(
            what=what,
            facts=SumFacts,
            measure=on_group(name, check_sums),
            judge=judge.judge_sums(what, size, others=others),
        )
    carrier = next(name for name in transports if TRANSPORTS[name].carries_messages)
    yield Check(
        what="messages",
        facts=MessageFacts,
        measure=on_group(carrier, partial(exchange_messages, timeout_s=_MESSAGE_S)),
        judge=judge.judge_messages("messages", size),
    )
    yield Check(
        what="kernel and clocks",
        facts=KernelFacts,
        measure=on_device(time_kernel),
        judge=judge.judge_kernel("kernel and clocks", size),
    )
    yield Check(
        what="memory meter",
        facts=MemoryFacts,
        measure=on_device(meter_memory),
        judge=judge.judge_memory("memory meter", size),
    )
    if any_staged:
        yield Check(
            what="counters",
            facts=CounterFacts,
            measure=on_device(read_counters) if is_staged else lambda: None,
            judge=judge.judge_counters("counters", size),
        )


def _bound(devices: RankDevices) -> Callable[[Callable[[Any], T]], Callable[[], T]]:
    """A measurement on this rank's device, in the thread that makes it."""

    def on_device(measure: Callable[[Any], T]) -> Callable[[], T]:
        def run() -> T:
            devices.own.bind()
            return measure(devices.own)

        return run

    return on_device


def _failures(control: Control, devices: RankDevices, modules: Sequence[str]) -> Iterator[Check[FailureFacts]]:
    """A rank that raises, and one that is killed."""
    transport = transports_of(control, devices)[0]
    for how in (RAISED, KILLED):
        address, port = meeting_point(control)
        job = FailingJob(
            how=how,
            rank=control.rank,
            size=control.size,
            device=str(devices.own.device),
            transport=transport,
            modules=tuple(modules),
            address=address,
            port=port,
        )
        what = f"a rank that {'is ' * (how == KILLED)}{how}"
        yield Check(
            what=what,
            facts=FailureFacts,
            measure=partial(fail_on_purpose, job),
            judge=partial(judge_failure, what, job),
            limit_s=LIMIT_S + 10.0,
        )


def summary(findings: Sequence[Finding]) -> str:
    """One sentence."""
    problems = sum(finding.state not in ("ok", NOTE) for finding in findings)
    if not problems:
        return "all checks passed"
    return f"{problems} problem{'s' * (problems != 1)}: `autotune doctor --json` has what each rank measured"
