"""One rank's part in exchanging gradients: offer what is ready, post what is granted in that order, tell what has landed.

A thread waits for what was posted, in that order (`landing`), and another for what other ranks have to say (`coordinator`);
neither ever spins. An error on any rank reaches all: rank 0 stops granting and says so, and whoever waits is woken with the
reason.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, SUM, Round
from autotune.runtime.control.channel import open_lines
from autotune.runtime.errors import PeerLostError
from autotune.runtime.reduce.completions import Landing
from autotune.runtime.reduce.coordinator import Coordinator, Desk, Follower
from autotune.runtime.reduce.send_order import Grant, Grants, InTurn, Offer
from autotune.workloads.errors import SpecError

_END_S = 5.0
"""How long a rank that ends waits for the others to end too."""
_REFUSAL = re.compile(r"rank \d+: SpecError: (?P<text>.*)", re.DOTALL)
"""What one rank of a script refuses, all ranks refuse, in the same words."""
_TAGS = 1 << 16
"""Messages of gathers and swaps are told apart by tags from here on, as many at once as this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """A part on its way, on the monotonic clock."""

    unit: int
    round: int
    part: int
    num_bytes: int
    offered_s: float
    posted_s: float
    landed_s: float


class Listener(Protocol):
    """Who is told, by threads of the scheduler and by whoever waits in it."""

    def landed(self, unit: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        """A round of the unit has been exchanged."""

    def failed(self, error: Exception) -> None:
        """Nothing more will land."""


@dataclass(slots=True)
class _Open:
    """A round between its offer and the landing of its last part."""

    round: Round
    offered_s: float
    received: tuple[Tensor, ...] = ()
    num_landed: int = 0


@dataclass(frozen=True, slots=True)
class _Posted:
    """A part that all ranks have joined, or will."""

    grant: Grant
    works: list[Any]
    posted_s: float


class Scheduler:
    """Exchanges rounds of units over `group` in an order that all ranks share. Made by all ranks together."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        make_grants: Callable[[], Grants],
        listener: Listener,
        in_turn: InTurn | None = None,
    ) -> None:
        """With `in_turn` ranks ask nobody, and only hear of failures from each other."""
        self._group = group
        self._listener = listener
        self._in_turn = in_turn
        self.lands_early = in_turn is None
        """Whether parts land as soon as they have arrived, or may when somebody waits for them."""
        self._open: dict[tuple[int, int], _Open] = {}
        self._num_messages = 0
        self._has_failed = False
        self.recording = False
        self._flights: list[Flight] = []
        self._landing = Landing(self._land)
        self._desk = self._open_desk(make_grants)

    def _open_desk(self, make_grants: Callable[[], Grants]) -> Desk:
        lines = open_lines(self._group)
        if self._group.rank() == 0:
            return Coordinator(lines, make_grants(), self._post, self._fail)
        return Follower(lines[0], self._post, self._fail)

    def offer(self, unit: int, number: int, content: Round, unused: Sequence[int] = (), *, position: int = 0) -> None:
        """This rank is ready for round `number` of the unit."""
        self._open[unit, number] = _Open(round=content, offered_s=time.monotonic())
        offer = Offer(
            unit=unit,
            round=number,
            num_bytes=content.num_bytes,
            num_elements=content.tensors[0].numel(),
            cuttable=content.kind == SUM,
            unused=unused,
            position=position,
        )
        if self._in_turn is None:
            self._desk.offer(offer)
            return
        for grant in self._in_turn.offer(offer):
            self._post(grant)

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Until what the listener was told makes `arrived` true, or for so long; whether it does."""
        return self._landing.wait_until(arrived, timeout_s)

    def left(self) -> list[int]:
        """Ranks that have ended their training."""
        return self._desk.left()

    def tell_late(self, step: int) -> None:
        """This rank has waited for long: rank 0 says for which ranks."""
        self._desk.late(step)

    def take(self) -> list[Flight]:
        """What has landed while recording, since the last call."""
        taken, self._flights = self._flights, []
        return taken

    def close(self, error: BaseException | None = None) -> None:
        """End together with the other ranks; with an error, theirs end too."""
        self._desk.leave(f"{type(error).__name__}: {error}" if error is not None else None, _END_S)
        self._landing.close(_END_S)
        del self._group

    def _fail(self, why: str) -> None:
        refusal = _REFUSAL.fullmatch(why)
        lost = PeerLostError(f"the exchange of gradients has ended: {why}")
        self._listener.failed(SpecError(refusal["text"]) if refusal is not None else lost)
        self._landing.wake()

    def _post(self, grant: Grant) -> None:
        opened = self._open[grant.unit, grant.round]
        content = opened.round
        posted_s = time.monotonic()
        if content.kind == SUM:
            tensor = content.tensors[0]
            size = tensor.numel()
            start, end = (size * (grant.part + more) // grant.num_parts for more in (0, 1))
            opened.received = content.tensors
            works = [self._group.allreduce([tensor[start:end]], dist.AllreduceOptions())]
        else:
            works = self._exchange(opened, grant)
        self._landing.put(_Posted(grant, works, posted_s), now=self.lands_early or self.recording)

    def _exchange(self, opened: _Open, grant: Grant) -> list[Any]:
        """To each rank its own tensor (swap) or the one there is (gather). Receives are posted before sends."""
        content, rank, size = opened.round, self._group.rank(), self._group.size()
        tag = _TAGS + self._num_messages % _TAGS
        self._num_messages += 1
        own = content.tensors[0 if content.kind == GATHER else rank]
        opened.received = tuple(
            own if source == rank else own.new_empty(grant.sizes[source] if content.kind == GATHER else own.numel())
            for source in range(size)
        )
        peers = [peer for peer in range(size) if peer != rank]
        arriving = [
            self._group.recv([opened.received[peer]], peer, tag) for peer in peers if len(opened.received[peer])
        ]
        outgoing = [(content.tensors[0 if content.kind == GATHER else peer], peer) for peer in peers]
        return arriving + [self._group.send([tensor], peer, tag) for tensor, peer in outgoing if len(tensor)]

    def _land(self, posted: _Posted) -> None:
        if self._has_failed:
            return
        try:
            self._arrive(posted)
        except Exception as error:  # noqa: BLE001 - every failure belongs to whoever waits for a landing
            self._has_failed = True
            self._listener.failed(error)
            self._desk.fail(f"{type(error).__name__}: {error}")

    def _arrive(self, posted: _Posted) -> None:
        for work in posted.works:
            work.wait()
        grant = posted.grant
        if self._in_turn is None:
            self._desk.landed(grant.num_bytes)
        opened = self._open[grant.unit, grant.round]
        if self.recording:
            self._note(grant, opened, posted.posted_s)
        opened.num_landed += 1
        if opened.num_landed == grant.num_parts:
            del self._open[grant.unit, grant.round]
            self._listener.landed(grant.unit, opened.received, grant.unused)

    def _note(self, grant: Grant, opened: _Open, posted_s: float) -> None:
        self._flights.append(
            Flight(
                unit=grant.unit,
                round=grant.round,
                part=grant.part,
                num_bytes=grant.num_bytes,
                offered_s=opened.offered_s,
                posted_s=posted_s,
                landed_s=time.monotonic(),
            )
        )
