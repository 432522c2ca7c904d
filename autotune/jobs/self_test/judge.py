"""What follows from the measurements of all ranks: one finding where all is right, one for each thing that is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.jobs.self_test.finding import NOTE, OK, PROBLEM, Finding, named_ranks, ranks_of
from autotune.runtime.probe.counter_probe import CounterFacts
from autotune.runtime.probe.kernel_probe import KernelFacts
from autotune.runtime.probe.memory_probe import MemoryFacts
from autotune.runtime.probe.message_probe import MessageFacts
from autotune.runtime.probe.sum_probe import SIZES, SumFacts
from autotune.workloads.quantity import format_bytes
from autotune.workloads.serial import to_data

CLOCK_TOLERANCE = 0.2
_FEW_CORES = 0.7
_METER_TOLERANCE = 0.1
_ALLOCATOR_BYTES = 4 * 2**20
"""Allocators round up to their blocks."""
_SEEN = 0.8
_MOST_TEXTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one rank's facts say, where they are not as they must be."""

    state: str
    detail: str
    fix: str


def findings_of(
    what: str, verdicts: Sequence[tuple[int, Verdict]], *, ok: str, size: int, facts: Sequence[Any]
) -> list[Finding]:
    """The findings of a check: the verdicts, equal ones of several ranks as one; `ok` where there is none."""
    measured: list[Any] = [None] * size
    for rank, one in facts:
        measured[rank] = to_data(one)
    found = [
        Finding(
            what=what,
            state=verdict.state,
            detail=f"{named_ranks(ranks, size)}: {verdict.detail}",
            fix=verdict.fix,
            ranks=tuple(ranks),
        )
        for verdict, ranks in ranks_of(verdicts).items()
    ]
    if not found:
        ranks = tuple(rank for rank, _ in facts)
        found.append(Finding(what=what, state=OK, detail=f"{named_ranks(ranks, size)}: {ok}", ranks=ranks))
    return [replace(found[0], measured=tuple(measured)), *found[1:]]


def judge_sums(what: str, size: int, *, others: str) -> Callable[[Sequence[tuple[int, SumFacts]]], list[Finding]]:
    """`others`: the transports that could be used instead."""

    def judge(facts: Sequence[tuple[int, SumFacts]]) -> list[Finding]:
        instead = f"; until it is found, train with --transports {others}" if others else ""
        fix = f"no result of this transport can be trusted here: send us this output{instead}"
        verdicts = [
            (rank, Verdict(state=PROBLEM, detail=_shortened(one.wrong), fix=fix)) for rank, one in facts if one.wrong
        ]
        slowest_s = max(one.all_reduce_s for _, one in facts)
        speed = f"{format_bytes(SIZES[-1])} in {slowest_s * 1e3:.3g} ms"
        ok = f"{facts[0][1].num_checked} results right (all-reduce {speed})"
        return findings_of(what, verdicts, ok=ok, size=size, facts=facts)

    return judge


def _shortened(texts: Sequence[str]) -> str:
    rest = f"; and {len(texts) - _MOST_TEXTS} more" if len(texts) > _MOST_TEXTS else ""
    return "; ".join(texts[:_MOST_TEXTS]) + rest


def judge_messages(what: str, size: int) -> Callable[[Sequence[tuple[int, MessageFacts]]], list[Finding]]:
    def judge(facts: Sequence[tuple[int, MessageFacts]]) -> list[Finding]:
        reach = (
            "do firewalls let these ranks' hosts reach each other on every port? GLOO_SOCKET_IFNAME names the network "
            "interface to use"
        )
        verdicts: list[tuple[int, Verdict]] = []
        for rank, one in facts:
            texts = [(f"the message of rank {source} has not arrived", reach) for source in one.missing]
            texts += [
                (f"the message of rank {source} has arrived changed", "send us this output") for source in one.wrong
            ]
            verdicts += [(rank, Verdict(state=PROBLEM, detail=text, fix=fix)) for text, fix in texts]
        num_pairs = sum(one.num_expected for _, one in facts)
        ok = f"{num_pairs} messages arrived unchanged (the last after {max(one.slowest_s for _, one in facts) * 1e3:.3g} ms)"
        return findings_of(what, verdicts, ok=ok, size=size, facts=facts)

    return judge


def judge_kernel(what: str, size: int) -> Callable[[Sequence[tuple[int, KernelFacts]]], list[Finding]]:
    def judge(facts: Sequence[tuple[int, KernelFacts]]) -> list[Finding]:
        verdicts = [(rank, verdict) for rank, one in facts for verdict in _about_kernel(one)]
        speeds = ", ".join(dict.fromkeys(f"{one.flops_per_s / 1e9:.3g}" for _, one in facts))
        sizes = " and ".join(dict.fromkeys(f"{one.size} x {one.size}" for _, one in facts))
        problems = [one for one in verdicts if one[1].state == PROBLEM]
        ok = f"matmul {sizes} float32 right, all clocks agree: {speeds} GFLOP/s"
        found = findings_of(what, problems, ok=ok, size=size, facts=facts)
        if notes := [one for one in verdicts if one[1].state == NOTE]:
            found += [replace(one, measured=()) for one in findings_of(what, notes, ok="", size=size, facts=facts)]
        return found

    return judge


def _about_kernel(one: KernelFacts) -> list[Verdict]:
    found = []
    if one.num_wrong:
        detail = f"{one.num_wrong} of {one.size**2} elements of a matmul {one.size} x {one.size} are wrong"
        fix = "the device computes wrong: test it with its vendor's diagnostics (dcgmi diag -r 3)"
        found.append(Verdict(state=PROBLEM, detail=detail, fix=fix))
    wrong = [
        f"{name} {seconds:.3g} s, a factor of {ratio:.2g}"
        for name, seconds, ratio in (
            ("our clock", one.stamps_s, one.stamps_ratio),
            ("the device's events", one.events_s, one.events_ratio),
        )
        if seconds is not None and ratio is not None and abs(ratio - 1.0) > CLOCK_TOLERANCE
    ]
    if wrong:
        detail = f"{one.count} matmuls take {one.host_s:.3g} s by the host's clock, but by {' and by '.join(wrong)}"
        fix = "times of this device are wrong, and so is every split: send us this output"
        found.append(Verdict(state=PROBLEM, detail=detail, fix=fix))
    if one.events_s is None and one.cores < _FEW_CORES:
        fix = "start at most as many ranks as cores, and no other work beside them"
        detail = "has less than one core to compute on: it shares it with other ranks or work"
        found.append(Verdict(state=NOTE, detail=detail, fix=fix))
    return found


def judge_memory(what: str, size: int) -> Callable[[Sequence[tuple[int, MemoryFacts]]], list[Finding]]:
    def judge(facts: Sequence[tuple[int, MemoryFacts]]) -> list[Finding]:
        verdicts = [(rank, verdict) for rank, one in facts if (verdict := _about_memory(one))]
        stated = " and ".join(dict.fromkeys(format_bytes(one.stated_bytes) for _, one in facts))
        meters = " and ".join(dict.fromkeys("accounted" if one.is_accounted else "of the device" for _, one in facts))
        return findings_of(
            what, verdicts, ok=f"{stated} held, and seen by the meter ({meters})", size=size, facts=facts
        )

    return judge


def _about_memory(one: MemoryFacts) -> Verdict | None:
    most = one.stated_bytes * (1 + _METER_TOLERANCE) + _ALLOCATOR_BYTES
    fix = "memory limits and reports of this rank are wrong: send us this output"
    if not one.stated_bytes <= one.metered_bytes <= most:
        detail = f"the meter reads {_size(one.metered_bytes)} where {_size(one.stated_bytes)} are held"
        return Verdict(state=PROBLEM, detail=detail, fix=fix)
    if not one.is_accounted and one.other_bytes < _SEEN * one.stated_bytes:
        detail = (
            f"the driver's free memory fell by {_size(one.other_bytes)} where {_size(one.stated_bytes)} were allocated"
        )
        fix = "fine where the allocator kept memory of its own; otherwise another device was asked"
        return Verdict(state=NOTE, detail=detail, fix=fix)
    return None


def judge_counters(what: str, size: int) -> Callable[[Sequence[tuple[int, CounterFacts]]], list[Finding]]:
    def judge(facts: Sequence[tuple[int, CounterFacts]]) -> list[Finding]:
        verdicts = [(rank, verdict) for rank, one in facts if (verdict := _about_counters(one))]
        readings = ", ".join(f"{name.removeprefix('gpu_')} {value:.4g}" for name, value in facts[0][1].values.items())
        ok = f"the driver counts the device of torch ({readings})"
        return findings_of(what, verdicts, ok=ok, size=size, facts=facts)

    return judge


def _about_counters(one: CounterFacts) -> Verdict | None:
    if not one.values:
        reason = next(iter(one.unavailable.values()), "it has no counters")
        fix = "training works; power and energy are not reported"
        return Verdict(state=NOTE, detail=f"no counters: {reason}", fix=fix)
    if one.grown_bytes is not None and one.grown_bytes < _SEEN * one.allocated_bytes:
        detail = (
            f"torch allocated {_size(one.allocated_bytes)} but the memory of {one.name} grew by {_size(one.grown_bytes)}: "
            "torch and the driver mean different devices"
        )
        fix = "power and energy would be those of another device: send us this output and `nvidia-smi -L`"
        return Verdict(state=PROBLEM, detail=detail, fix=fix)
    if one.unavailable:
        missing = ", ".join(f"{name.removeprefix('gpu_')} ({reason})" for name, reason in one.unavailable.items())
        fix = "these are left out of reports"
        return Verdict(state=NOTE, detail=f"{one.name} does not count {missing}", fix=fix)
    return None


def _size(num_bytes: float) -> str:
    return format_bytes(max(num_bytes, 0))
