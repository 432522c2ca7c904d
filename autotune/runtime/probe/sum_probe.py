"""Whether a process group computes right: every collective with known values, all number formats, many at once, then a time.

Values are small integers, whose sums are exact in every format: one wrong element is a defect, not rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autotune.runtime.probe.timed_collectives import AllGather, AllReduce, Broadcast, Exchange, GroupMember
from autotune.workloads.plan import MIB
from autotune.workloads.quantity import format_bytes

SIZES = (4, 4 * 1024, 4 * MIB)
DTYPES = (torch.float64, torch.float16, torch.bfloat16)
NUM_AT_ONCE = 16
_COLLECTIVES: dict[str, Callable[[GroupMember], Exchange]] = {
    "all-reduce": AllReduce,
    "broadcast": Broadcast,
    "all-gather": AllGather,
}
_FORMAT_LENGTH = 1001
_TIMED_LOOPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SumFacts:
    """What one rank has found."""

    num_checked: int
    wrong: tuple[str, ...]
    """A sentence for each result that is not what it must be."""
    all_reduce_s: float
    """Of one all-reduce of the largest size."""


def check_sums(member: GroupMember) -> SumFacts:
    """Called by all ranks together."""
    found = [*_collectives(member), *_formats(member), _at_once(member)]
    seconds = AllReduce(member).loop(SIZES[-1], _TIMED_LOOPS) / _TIMED_LOOPS
    return SumFacts(num_checked=len(found), wrong=tuple(text for text in found if text), all_reduce_s=seconds)


def _collectives(member: GroupMember) -> Iterator[str]:
    for name, kind in _COLLECTIVES.items():
        exchange = kind(member)
        for wanted in SIZES:
            num_bytes = exchange.size_of(wanted)
            yield _said(f"{name} of {format_bytes(num_bytes)}", exchange.check(num_bytes), num_bytes // 4)


def _formats(member: GroupMember) -> Iterator[str]:
    """The first and the last rank contribute: more would not be exact in bfloat16 for any number of ranks."""
    contributors = {0, member.size - 1}
    for dtype in DTYPES:
        own = float(member.rank in contributors)
        data = torch.full((_FORMAT_LENGTH,), own, dtype=dtype, device=member.device)
        member.group.allreduce([data], dist.AllreduceOptions()).wait()
        member.synchronize()
        num_wrong = int((data != float(len(contributors))).sum())
        yield _said(f"all-reduce in {str(dtype).removeprefix('torch.')}", num_wrong, _FORMAT_LENGTH)


def _at_once(member: GroupMember) -> str:
    """Of different lengths, posted before the first is waited for: a group that changes their order adds the wrong ones."""
    data = [member.values(1000 + 7 * number, member.rank) + number for number in range(NUM_AT_ONCE)]
    for work in [member.group.allreduce([one], dist.AllreduceOptions()) for one in data]:
        work.wait()
    member.synchronize()
    factor, size = member.size * (member.size + 1) / 2, member.size
    expected = [member.values(len(one), 0) * factor + number * size for number, one in enumerate(data)]
    num_wrong = sum(int((one != right).sum()) for one, right in zip(data, expected, strict=True))
    return _said(f"{NUM_AT_ONCE} all-reduces at once", num_wrong, sum(map(len, data)))


def _said(what: str, num_wrong: int, num_elements: int) -> str:
    return f"{what}: {num_wrong} of {num_elements} elements are wrong" if num_wrong else ""
