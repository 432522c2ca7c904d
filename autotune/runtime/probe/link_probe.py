"""Time an exchange at several sizes: all ranks make the same calls, and every decision follows from shared figures.

Each size is checked, timed once (which determines the number of repetitions), then timed in a few loops. The time of the
slowest rank counts, and the median over loops. Sizes grow until the next one would take too long, so a slow link ends the
sweep early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median

from autotune.profilers.fit import fit_line
from autotune.profilers.links import SEND
from autotune.results.store.fits import TransferRow
from autotune.runtime.control.mpi import Control
from autotune.runtime.probe.timed_collectives import ANSWER_BYTES, Exchange, GroupMember, Message
from autotune.workloads.plan import MIB

FEW_HOSTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeBudget:
    """The measurement budget of one exchange."""

    smallest_bytes: int = 512
    growth: int = 4
    largest_bytes: int = 8 * MIB
    longest_s: float = 1.2
    """Sizes that are expected to take longer are not measured."""
    loops: int = 7
    slow_s: float = 0.05
    """An exchange that takes longer varies less: `slow_loops` are enough."""
    slow_loops: int = 3
    loop_s: float = 0.015
    """The duration of a loop …"""
    most_repeats: int = 50
    """… but at most this many exchanges."""

    def repeats(self, once_s: float) -> int:
        return min(max(int(self.loop_s / max(once_s, 1e-9)), 1), self.most_repeats)


def sweep(
    control: Control, exchange: Exchange, budget: ProbeBudget, *, kind: str, first_bytes: int = 0
) -> list[TransferRow]:
    """One row per size, the same on every rank; called by all ranks together."""
    rows: list[TransferRow] = []
    wanted = first_bytes or budget.smallest_bytes
    while wanted <= budget.largest_bytes:
        num_bytes = exchange.size_of(wanted)
        row, once_s = _measure(control, exchange, budget, kind=kind, num_bytes=num_bytes)
        rows.append(row)
        if once_s * budget.growth > budget.longest_s:
            break
        wanted = max(wanted * budget.growth, budget.smallest_bytes)
    return rows


def _measure(
    control: Control, exchange: Exchange, budget: ProbeBudget, *, kind: str, num_bytes: int
) -> tuple[TransferRow, float]:
    num_wrong = sum(control.share(exchange.check(num_bytes)))
    once_s = max(control.share(exchange.loop(num_bytes, 1)))
    count = budget.repeats(once_s)
    loops_s = [once_s] if count == 1 else []
    num_loops = budget.loops if once_s < budget.slow_s else budget.slow_loops
    while len(loops_s) < num_loops:
        loops_s.append(max(control.share(exchange.loop(num_bytes, count))) / count)
    row = TransferRow.measured(kind, control.size, num_bytes, median(loops_s), num_wrong)
    return row, once_s


def message_rows(
    control: Control, member: GroupMember, source: int, target: int, budget: ProbeBudget
) -> list[TransferRow]:
    """One-way messages from rank to rank. A round trip includes an answer of one element, whose time is subtracted: half of
    the fixed time of a round trip, from a line fit over all sizes. This assumes equal latency in both directions.
    """
    there_and_back = sweep(control, Message(member, source, target), budget, kind=SEND, first_bytes=ANSWER_BYTES)
    back_s = fit_line([(row.num_bytes, row.seconds) for row in there_and_back]).fixed / 2
    return [
        TransferRow.measured(SEND, 2, row.num_bytes, max(row.seconds - back_s, 0.0), row.num_wrong)
        for row in there_and_back
    ]


def pairs_to_measure(host_of_rank: Sequence[int], *, within_hosts: bool) -> list[tuple[int, int]]:
    """Pairs of host representatives: all ordered pairs of up to four hosts; for more hosts a ring, and a star both ways.

    With `within_hosts`, also the first two ranks of each host.
    """
    members = {host: [rank for rank, at in enumerate(host_of_rank) if at == host] for host in sorted(set(host_of_rank))}
    first = [ranks[0] for ranks in members.values()]
    if len(first) <= FEW_HOSTS:
        pairs = list(permutations(first, 2))
    else:
        around = zip(first, [*first[1:], first[0]], strict=True)
        pairs = sorted({*around, *((first[0], b) for b in first[1:]), *((b, first[0]) for b in first[1:])})
    if within_hosts:
        pairs += [pair for ranks in members.values() for pair in permutations(ranks[:2], 2)]
    return pairs
