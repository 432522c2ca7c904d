"""Whether messages arrive: every rank sends to every other one, or to those at distances 1, 2, 4 … in a large job.

All receives are posted first, all sends follow, and each receive has a thread that waits for it. A wait that ends by its
time limit makes gloo give up the connections of the whole group; so all waits end at the same moment, and what had arrived
by then is known.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.device import handle
from autotune.runtime.probe.timed_collectives import GroupMember

MOST_FOR_ALL_PAIRS = 9
NUM_ELEMENTS = 64 * 1024
"""256 KiB: beyond what is sent eagerly."""
_TAG = 3
_JOIN_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageFacts:
    """What one rank has found."""

    num_expected: int
    missing: tuple[int, ...]
    """The ranks from which no message arrived."""
    wrong: tuple[int, ...]
    """The ranks whose message arrived with other content."""
    slowest_s: float
    """Until the last message that arrived."""


def distances(size: int) -> list[int]:
    """How far apart the ranks are that exchange messages, round the ring of ranks."""
    if size <= MOST_FOR_ALL_PAIRS:
        return list(range(1, size))
    return [1 << power for power in range((size - 1).bit_length())]


def exchange_messages(member: GroupMember, timeout_s: float) -> MessageFacts:
    """Called by all ranks together."""
    rank, size = member.rank, member.size
    sources = [(rank - distance) % size for distance in distances(size)]
    begun_s = time.perf_counter()
    received = {source: torch.zeros(NUM_ELEMENTS, device=member.device) for source in sources}
    works = {source: member.group.recv([data], source, _TAG) for source, data in received.items()}
    arrived: dict[int, tuple[bool, float]] = {}
    waits = [
        threading.Thread(target=_wait, args=(member, source, works[source], data, timeout_s, arrived), daemon=True)
        for source, data in received.items()
    ]
    for wait in waits:
        wait.start()
    sent = [
        member.group.send([_content(member, rank, target)], target, _TAG)
        for target in ((rank + distance) % size for distance in distances(size))
    ]
    for wait in waits:
        wait.join(timeout_s + _JOIN_S)
    found = dict(arrived)
    del sent
    return MessageFacts(
        num_expected=len(sources),
        missing=tuple(sorted(set(sources) - set(found))),
        wrong=tuple(sorted(source for source, (is_right, _) in found.items() if not is_right)),
        slowest_s=max((at_s for _, at_s in found.values()), default=begun_s) - begun_s,
    )


def _content(member: GroupMember, source: int, target: int) -> Tensor:
    """Different for every pair, and the same for none in the other direction."""
    return member.values(NUM_ELEMENTS, source) + 1000.0 * target


def _wait(  # noqa: PLR0913, PLR0917 - the arguments of a thread
    member: GroupMember, source: int, work: Any, data: Tensor, timeout_s: float, arrived: dict[int, tuple[bool, float]]
) -> None:
    device = handle(member.device)
    device.bind()
    try:
        work.wait(timedelta(seconds=timeout_s))
        device.synchronize()
    except RuntimeError:  # the time limit, here or in a thread beside this one
        return
    at_s = time.perf_counter()
    arrived[source] = torch.equal(data.cpu(), _content(member, source, member.rank).cpu()), at_s
