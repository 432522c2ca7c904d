"""What the doctor of a job measures on fake accelerators, healthy and with each defect, without mpirun."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.jobs.self_test.finding import OK, PROBLEM
from autotune.jobs.self_test.judge import judge_kernel, judge_memory, judge_messages, judge_sums
from autotune.runtime.device import handle
from autotune.runtime.probe.kernel_probe import time_kernel
from autotune.runtime.probe.memory_probe import STATED_BYTES, meter_memory
from autotune.runtime.probe.message_probe import MessageFacts, exchange_messages
from autotune.runtime.probe.sum_probe import SumFacts, check_sums
from autotune.runtime.probe.timed_collectives import GroupMember
from autotune.runtime.transport.staged_group import StagedGroup
from tests.accelerator import defects
from tests.accelerator.device_module import DeviceModule
from tests.accelerator.nccl import FakeNccl
from tests.accelerator.streams import NAME, Event
from tests.accelerator.threads import on_device_ranks
from tests.gloo_ranks import on_ranks

FIRST = torch.device(NAME, 0)


def summed(group: FakeNccl) -> SumFacts:
    return check_sums(GroupMember(group=group, device=torch.device(NAME, group.rank())))


def wrong_on_rank_1(group: FakeNccl) -> SumFacts:
    if group.rank() == 1:
        group._inner = defects.WrongSums(group._inner)
    return summed(group)


def test_sums_on_the_device() -> None:
    found = on_device_ranks(2, summed)
    (finding,) = judge_sums("sums", 2, others="")([*enumerate(found)])
    assert (finding.state, found[0].wrong) == (OK, ())


def test_a_sum_that_is_wrong_on_one_rank() -> None:
    found = on_device_ranks(2, wrong_on_rank_1)
    (finding,) = judge_sums("sums", 2, others="gloo")([*enumerate(found)])
    assert (finding.state, finding.ranks) == (PROBLEM, (1,))
    assert "all-reduce of 4 B: 1 of 1 elements are wrong" in finding.detail


def exchanged(group: dist.ProcessGroup, *, loses: bool) -> MessageFacts:
    rank = group.rank()
    device = handle(torch.device(NAME, rank))
    device.bind()
    staged: Any = StagedGroup(group, device)
    if loses and rank == 0:
        staged.send = lambda *_: None
    try:
        return exchange_messages(GroupMember(group=staged, device=device.device), 1.0 if loses else 10.0)
    finally:
        for thread in staged.close():
            thread.join(10)


def test_messages_between_devices() -> None:
    found = on_ranks(2, lambda group: exchanged(group, loses=False))
    (finding,) = judge_messages("messages", 2)([*enumerate(found)])
    assert finding.state == OK, finding


def test_a_message_that_does_not_arrive() -> None:
    found = on_ranks(2, lambda group: exchanged(group, loses=True))
    (finding,) = judge_messages("messages", 2)([*enumerate(found)])
    assert (finding.state, finding.detail) == (PROBLEM, "rank 1: the message of rank 0 has not arrived")


def test_the_clocks_of_a_device_agree() -> None:
    found = time_kernel(handle(FIRST))
    assert found.num_wrong == 0
    assert found.events_ratio == pytest.approx(1, abs=0.2)
    assert found.stamps_ratio == pytest.approx(1, abs=0.2)


def test_a_clock_that_is_off_by_a_factor_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "elapsed_time", Event.elapsed_time)
    defects.wrong_clock()
    found = time_kernel(handle(FIRST))
    assert found.events_ratio == pytest.approx(3, rel=0.2)
    problem = judge_kernel("kernel", 1)([(0, found)])[0]
    assert problem.state == PROBLEM
    assert "by our clock" in problem.detail


def test_a_meter_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meter_memory(handle(FIRST))
    assert (found.metered_bytes, found.other_bytes, found.is_accounted) == (STATED_BYTES, STATED_BYTES, False)
    monkeypatch.setattr(DeviceModule, "max_memory_allocated", DeviceModule.max_memory_allocated)
    defects.dead_meter()
    problem = judge_memory("memory", 1)([(0, meter_memory(handle(FIRST)))])[0]
    assert (problem.state, problem.detail) == (PROBLEM, "rank 0: the meter reads 0 B where 64 MiB are held")
