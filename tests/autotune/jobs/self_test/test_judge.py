"""What the doctor of a job says about what ranks have measured: one line where all is right, one for each defect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.jobs.self_test.finding import NOTE, OK, PROBLEM, Finding, named_ranks
from autotune.jobs.self_test.judge import judge_counters, judge_kernel, judge_memory, judge_messages, judge_sums
from autotune.runtime.probe.counter_probe import CounterFacts
from autotune.runtime.probe.kernel_probe import KernelFacts
from autotune.runtime.probe.memory_probe import MemoryFacts
from autotune.runtime.probe.message_probe import MessageFacts
from autotune.runtime.probe.sum_probe import SumFacts
from autotune.workloads.plan import MIB

SUMS = SumFacts(num_checked=13, wrong=(), all_reduce_s=0.002)
MESSAGES = MessageFacts(num_expected=2, missing=(), wrong=(), slowest_s=0.001)
KERNEL = KernelFacts(
    size=1024, count=100, num_wrong=0, host_s=0.3, stamps_s=0.29, events_s=0.29, launch_s=0.01, cpu_s=0.3
)
MEMORY = MemoryFacts(
    stated_bytes=64 * MIB, metered_bytes=64 * MIB, other_bytes=64 * MIB, is_accounted=False, free_bytes=0
)
COUNTERS = CounterFacts(
    name="nvml A", values={"gpu_power": 55.0}, unavailable={}, allocated_bytes=256 * MIB, grown_bytes=256 * MIB
)


def only(found: list[Finding], state: str) -> Finding:
    (one,) = (each for each in found if each.state == state)
    return one


def test_ranks_in_words() -> None:
    assert [named_ranks(ranks, 3) for ranks in ([1], [0, 2], [0, 1, 2])] == ["rank 1", "ranks 0, 2", "all 3 ranks"]
    assert named_ranks([0, 1], 2) == "both ranks"


def test_one_line_where_all_is_right() -> None:
    found = [
        *judge_sums("sums", 2, others="mpi")([(0, SUMS), (1, SUMS)]),
        *judge_messages("messages", 2)([(0, MESSAGES), (1, MESSAGES)]),
        *judge_kernel("kernel", 2)([(0, KERNEL), (1, KERNEL)]),
        *judge_memory("memory", 2)([(0, MEMORY), (1, MEMORY)]),
        *judge_counters("counters", 2)([(0, COUNTERS), (1, COUNTERS)]),
    ]
    assert [one.state for one in found] == [OK] * 5
    assert all(one.detail.startswith("both ranks: ") and one.ranks == (0, 1) for one in found)
    assert all(len(one.measured) == 2 for one in found)


def test_a_wrong_sum_names_rank_operation_and_other_transports() -> None:
    wrong = replace(SUMS, wrong=("all-reduce of 4 MiB: 3 of 1048576 elements are wrong", "b", "c", "d"))
    found = only(judge_sums("sums over nccl", 2, others="gloo,mpi")([(0, SUMS), (1, wrong)]), PROBLEM)
    assert found.detail.startswith("rank 1: all-reduce of 4 MiB: 3 of 1048576 elements are wrong; b; and 2 more")
    assert "--transports gloo,mpi" in found.fix


def test_messages_that_are_missing_or_changed_name_both_ends() -> None:
    facts = [(0, replace(MESSAGES, missing=(1,))), (1, MESSAGES), (2, replace(MESSAGES, wrong=(0,)))]
    found = judge_messages("messages", 3)(facts)
    assert [one.detail for one in found] == [
        "rank 0: the message of rank 1 has not arrived",
        "rank 2: the message of rank 0 has arrived changed",
    ]
    assert "GLOO_SOCKET_IFNAME" in found[0].fix


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stamps_s": 0.9, "events_s": 0.9}, ("by our clock 0.9 s, a factor of 3", "by the device's events 0.9 s")),
        ({"stamps_s": 0.1}, ("by our clock 0.1 s, a factor of 0.33",)),
        ({"events_s": 0.0}, ("by the device's events 0 s, a factor of 0",)),
        ({"num_wrong": 4}, ("4 of 1048576 elements of a matmul 1024 x 1024",)),
    ],
)
def test_a_clock_or_a_kernel_that_is_wrong(change: dict[str, float], words: tuple[str, ...]) -> None:
    found = only(judge_kernel("kernel", 2)([(0, replace(KERNEL, **change)), (1, KERNEL)]), PROBLEM)  # type: ignore[arg-type]
    assert found.detail.startswith("rank 0: ")
    assert all(word in found.detail for word in words), found.detail


def test_a_cpu_rank_without_a_core_of_its_own_is_a_note() -> None:
    shared = replace(KERNEL, events_s=None, cpu_s=0.1)
    found = judge_kernel("kernel", 2)([(0, shared), (1, KERNEL)])
    assert [one.state for one in found] == [OK, NOTE]
    assert "less than one core" in found[1].detail


@pytest.mark.parametrize("metered", [0, 32 * MIB, 128 * MIB])
def test_a_meter_that_does_not_see_what_is_there(metered: int) -> None:
    found = only(judge_memory("memory", 2)([(0, MEMORY), (1, replace(MEMORY, metered_bytes=metered))]), PROBLEM)
    assert found.detail.startswith("rank 1: the meter reads ")
    assert found.detail.endswith("where 64 MiB are held")


def test_memory_that_the_driver_does_not_miss_is_a_note() -> None:
    found = judge_memory("memory", 1)([(0, replace(MEMORY, other_bytes=0))])
    assert "the driver's free memory fell by 0 B" in only(found, NOTE).detail


def test_counters_of_another_device() -> None:
    found = only(judge_counters("counters", 1)([(0, replace(COUNTERS, grown_bytes=0.0))]), PROBLEM)
    assert "torch and the driver mean different devices" in found.detail
    missing = replace(COUNTERS, unavailable={"gpu_energy": "Not Supported"})
    assert "does not count energy (Not Supported)" in only(judge_counters("c", 1)([(0, missing)]), NOTE).detail
    none = replace(COUNTERS, values={}, unavailable={"gpu_energy": "NVML does not start"})
    assert "no counters: NVML does not start" in only(judge_counters("c", 1)([(0, none)]), NOTE).detail
