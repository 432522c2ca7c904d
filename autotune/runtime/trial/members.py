"""The ranks that a plan uses, as a job of their own: their groups, their control network, the plan in their numbering.

A rank that a plan leaves out holds no model and is in no collective. In a trial its steps take no time. In a comparison of several
plans it waits, without using its core, until the ranks of the plan have ended their turn: else its part of the next plan's
first step would contain that wait.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from torch import nn

from autotune.profilers.ranges import Ranges
from autotune.profilers.timeline import Timeline
from autotune.runtime.control.network import Network
from autotune.runtime.errors import PeerLostError
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.group_cache import GroupCache
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.outcome import RankOutcome
from autotune.workloads.errors import TrialTimeoutError
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """This rank among those that a plan uses."""

    plan: Plan
    """In their numbering."""
    groups: GroupCache
    rank_context: RankContext
    host_representatives: tuple[int, ...]


class Members:
    """Of one trial, by the ranks that its plans use. A context: its end closes the process groups.

    Not thread-safe: the thread that trains makes all calls, the same calls in the same order on all ranks.
    """

    def __init__(self, groups: Groups, rank_context: RankContext, *, traced: bool = False) -> None:
        self._groups, self._rank_context, self._traced = groups, rank_context, traced
        self._found: dict[tuple[int, ...], tuple[Groups, GroupCache, RankContext]] = {}
        self._stack = ExitStack()

    def of(self, plan: Plan) -> Member | None:
        """None on a rank that the plan leaves out."""
        used = plan.used_ranks if plan.leaves_out else tuple(range(len(plan.batch.samples)))
        if self._rank_context.rank not in used:
            return None
        if used not in self._found:
            self._found[used] = self._open(used, is_part=plan.leaves_out)
        groups, cache, rank_context = self._found[used]
        return Member(
            plan=plan.part(used) if plan.leaves_out else plan,
            groups=cache,
            rank_context=rank_context,
            host_representatives=groups.host_representatives,
        )

    def _open(self, used: tuple[int, ...], *, is_part: bool) -> tuple[Groups, GroupCache, RankContext]:
        groups, rank_context = self._groups, self._rank_context
        if is_part:
            part = groups.part(used)
            assert part is not None
            groups, rank_context = part, replace(rank_context, rank=used.index(rank_context.rank), network=part.network)
            part.network.begin_scope()
        cache = GroupCache(groups, timeout_s=rank_context.timeout_s, traced=self._traced)
        return groups, self._stack.enter_context(cache), rank_context

    def fail(self, why: str) -> None:
        """This rank has failed: tell the ranks of every plan that it is a member of."""
        for _, _, rank_context in self._found.values():
            if rank_context.network is not self._rank_context.network:
                rank_context.network.fail_scope(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(f"{type(error).__name__}: {error}")
        self._stack.__exit__(kind, error, trace)


def in_job(outcome: RankOutcome, plan: Plan, rank: int) -> RankOutcome:
    """An outcome of a part of the job in the numbering of the job. `plan`: of the whole job; `rank`: this one in it."""
    if outcome.result is None or not plan.leaves_out:
        return outcome
    spans = tuple(replace(span, rank=rank) for span in outcome.timeline.spans)
    counters = tuple(replace(counter, rank=rank) for counter in outcome.timeline.counters)
    return replace(
        outcome,
        result=replace(outcome.result, rank=rank, samples=plan.batch.samples[rank]),
        timeline=replace(outcome.timeline, spans=spans, counters=counters),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NoStep:
    """The step of a rank that is left out."""

    begin_s: float = 0.0
    end_s: float = 0.0
    total_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    late_s: float = 0.0
    loss_share: float = 0.0

    def timeline(self, rank: int) -> Timeline:  # noqa: ARG002 - of the protocol
        return Timeline()


@dataclass(kw_only=True, slots=True)
class LeftOut:
    """The trainer of a rank that a plan leaves out. It has no model, and takes no time."""

    plan: Plan
    rank_context: RankContext
    ranges: Ranges = field(default_factory=Ranges)
    peak_memory_bytes: int = 0

    def step(self) -> NoStep:
        return NoStep()

    def metered_step(self) -> NoStep:
        return NoStep()

    def barrier(self) -> None:
        """It is in no group."""

    def flush(self) -> None:
        """Nothing is in flight."""

    def record_collectives(self, *, on: bool) -> None:
        """It has none."""

    def whole_model(self) -> nn.Module:
        return nn.Module()

    def close(self, error: BaseException | None = None) -> None:
        """It holds nothing."""


class TurnEnds:
    """Tells ranks that a plan leaves out when its ranks have ended a turn; made by all ranks together, for one plan.

    Threads: the training thread calls `end` and `close`, the network's thread the handler's methods. `_changed` guards the rest.
    """

    def __init__(self, network: Network, plan: Plan, *, timeout_s: float) -> None:
        used = plan.used_ranks
        self._rank, self._announcer, self._timeout_s = network.rank, used[0], timeout_s
        self._is_member = network.rank in used
        self._num_ended = self._num_turns = 0
        self._lost = ""
        self._changed = threading.Condition()
        self._topic = network.topic()
        self._topic.open(self)

    def end(self) -> None:
        """The end of a turn: a member goes on at once, a rank that is left out when the members have got there."""
        self._num_turns += 1
        if self._rank == self._announcer:
            self._announce()
        if self._is_member:
            return
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._num_ended >= self._num_turns or bool(self._lost), self._timeout_s
            )
        if not in_time:
            raise TrialTimeoutError("the ranks of the plan did not end their turn in time")
        if self._num_ended < self._num_turns:
            raise PeerLostError(self._lost)

    def close(self) -> None:
        self._topic.close()

    def _announce(self) -> None:
        if self._rank == 0:
            self._topic.to_all(b"")
        else:
            self._topic.to_root(b"")

    # -- called by the network -----------------------------------------------------------------------------------------

    def from_child(self, child: int, payload: bytes) -> None:
        """Never: the announcer writes to rank 0."""

    def from_rank(self, rank: int, payload: bytes) -> None:  # noqa: ARG002 - there is one message
        self._topic.to_all(b"")
        self._count()

    def from_root(self, payload: bytes) -> None:  # noqa: ARG002 - there is one message
        self._count()

    def lost(self, why: str) -> None:
        with self._changed:
            self._lost = why
            self._changed.notify_all()

    def _count(self) -> None:
        with self._changed:
            self._num_ended += 1
            self._changed.notify_all()
