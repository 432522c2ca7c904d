"""A process group whose all-reduce is carried out by owners: every rank owns a share of the tensor.

Everybody sends each owner its slice; the owner adds them up and sends the sum to everybody. A ring puts the same bytes on
every link and is best where links are equal; here a rank behind a slow link owns little or nothing, sends and receives
its bytes once, and the fast links carry the rest (shares: `autotune.simulate.collectives.owned_shares`). With shares
1/len(servers) on some ranks and none elsewhere the same group is a parameter server: owners of equal shards who sum what
is pushed and answer with it (Li et al., OSDI 2014; shares after bandwidth: BytePS, Jiang et al., OSDI 2020).

- A tensor is cut into pieces, so that the sums of the first go back while slices of the next come in.
- All receives are posted before any send: a receive announces itself on the connection that carries our own bulk the
  other way, and behind that bulk it would hold up its sender.
- Slices are added in rank order, whoever arrives first, so every run has the same result, and all ranks the same bits.
- Sums are received into the very slice that was sent: its owner had it all, or there would be no sum.

Left out: ranks of one host do not add up among themselves first, which would save bytes where they share a link. Posting
is not held back either: sums follow whatever slices were posted before they were ready, which leaves no link idle but lets
the first of many all-reduces under way wait for some of the others.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.transport.paced_group import FutureWork
from autotune.runtime.transport.wrapped_group import WrappedGroup

CHUNK_BYTES = 1 << 19
"""Of an owner's slice, what makes a piece. The first piece must be in before a sum goes back, so small is good: 50 MB over
one slow link among three took 2.38 s in pieces of 2 MiB, 2.17 s of 1 MiB and 2.11 s of 512 or 256 KiB, for a bound of 2.0 s."""
_FIRST_TAG, _NUM_TAGS = 1 << 19, 1 << 19
"""Tags of ours: above those of plain messages, and below those that paced groups add. When they are used up they start
over, which is safe even with some still under way: messages of one tag between two ranks keep their order."""
_SLICE, _SUM = 0, 1
"""The two phases; a piece has a tag for each."""


def cut(num_elements: int, element_bytes: int, shares: Sequence[float], chunk_bytes: int) -> list[list[slice]]:
    """For each piece, the slice of each owner. Every owner's slice has as many pieces, so that all are done together."""
    last = max(owner for owner, share in enumerate(shares) if share > 0)
    # Sums of floats may end just beside one: what follows the last who owns anything begins at the very end.
    bounds = [
        min(round(sum(shares[:owner]) * num_elements), num_elements) if owner <= last else num_elements
        for owner in range(len(shares) + 1)
    ]
    owned = list(pairwise(bounds))
    pieces = max(math.ceil(max(end - start for start, end in owned) * element_bytes / chunk_bytes), 1)
    return [
        [
            slice(start + (end - start) * piece // pieces, start + (end - start) * (piece + 1) // pieces)
            for start, end in owned
        ]
        for piece in range(pieces)
    ]


@dataclass(frozen=True, slots=True)
class _Owned:
    """This rank's slice of one piece, with everybody's version of it in rank order, some of them on their way."""

    tag: int
    own: Tensor
    versions: list[Tensor]
    arriving: list[Any]

    def add_up(self) -> None:
        """The sum of all versions into our own, once they are here."""
        for work in self.arriving:
            work.wait()
        total = self.versions[0]
        for version in self.versions[1:-1]:
            total.add_(version)
        torch.add(total, self.versions[-1], out=self.own)


class _Exchange:
    """The all-reduce of one tensor: posted when made, by the caller; carried through by the worker.

    It holds the group for itself, so that what was posted is finished even if the group is closed meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup, tensor: Tensor, pieces: list[list[slice]], first_tag: int) -> None:
        rank, size = group.rank(), group.size()
        self._group, self._tensor, self._whole = group, tensor, tensor.contiguous()
        # Everybody begins with another owner, lest all send to the first at once.
        self._others = [(rank + step) % size for step in range(1, size)]
        flat = self._whole.view(-1)
        self._slices = [[flat[owned] for owned in piece] for piece in pieces]
        self._first_tag = first_tag
        self._owned = [self._await_slices(number) for number in range(len(pieces) if size > 1 else 0)]
        self._works = [
            group.recv([self._slices[number][owner]], owner, self._tag(number, _SUM))
            for number, owner in self._messages()
        ]
        self._works += [
            group.send([self._slices[number][owner]], owner, self._tag(number, _SLICE))
            for number, owner in self._messages()
        ]

    def finish(self) -> None:
        """Add up and return what we own, then wait for the rest."""
        for owned in self._owned:
            if owned is not None:
                owned.add_up()
                self._works += [self._group.send([owned.own], other, owned.tag) for other in self._others]
        for work in self._works:
            work.wait()
        if self._whole is not self._tensor:
            self._tensor.copy_(self._whole)

    def _messages(self) -> list[tuple[int, int]]:
        """(piece, owner) of every slice that another rank owns, in the order in which they go."""
        return [
            (number, owner)
            for number, piece in enumerate(self._slices)
            for owner in self._others
            if piece[owner].numel() > 0
        ]

    def _await_slices(self, number: int) -> _Owned | None:
        rank = self._group.rank()
        own = self._slices[number][rank]
        if own.numel() == 0:
            return None
        versions = [own if other == rank else torch.empty_like(own) for other in range(self._group.size())]
        tag = self._tag(number, _SLICE)
        arriving = [self._group.recv([versions[other]], other, tag) for other in self._others]
        return _Owned(self._tag(number, _SUM), own, versions, arriving)

    def _tag(self, number: int, phase: int) -> int:
        return _FIRST_TAG + (self._first_tag + 2 * number + phase) % _NUM_TAGS


class ShardGroup(WrappedGroup):
    """`inner`, whose messages carry the all-reduces; rank j owns `shares[j]` of every tensor. Sums only.

    All-reduces may be under way at once. One thread waits, adds and returns, in the order in which they were posted; it
    sleeps in gloo. What fails fails everything after it, as a connection that is lost stays lost. While an all-reduce is
    under way an owner holds its slice once more for every other rank.
    """

    def __init__(self, inner: dist.ProcessGroup, shares: Sequence[float], *, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(inner)
        self._shares: tuple[float, ...] = ()
        self.set_owners(shares)
        self._chunk_bytes = chunk_bytes
        self._next_tag = 0
        self._queue: queue.SimpleQueue[tuple[Any, list[Tensor], FutureWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="autotune-shards", daemon=True)
        self._thread.start()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise ValueError(f"shards are summed, but {opts.reduceOp} was asked for")
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        work = FutureWork()
        try:
            posted: Any = [self._post(tensor.detach()) for tensor in listed]
        except Exception as error:  # noqa: BLE001 - every failure belongs to whoever waits for this work
            posted = error.with_traceback(None)
        self._queue.put((posted, listed, work))
        return work

    def set_owners(self, shares: Sequence[float]) -> None:
        """Rank j owns `shares[j]` from the next all-reduce on: said by all ranks with none under way."""
        if len(shares) != self.size() or min(shares) < 0 or not math.isclose(sum(shares), 1.0):
            raise ValueError(
                f"shares are {list(shares)}: {self.size()} ranks need one each, none negative, summing to 1"
            )
        self._shares = tuple(shares)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "shards"

    def close(self) -> threading.Thread:
        """Let go of the real group; its peers learn of it when the worker has finished what was posted, and ended."""
        self._queue.put(None)
        self._inner = None
        return self._thread

    def _post(self, tensor: Tensor) -> _Exchange:
        assert self._inner is not None
        pieces = cut(tensor.numel(), tensor.element_size(), self._shares, self._chunk_bytes)
        exchange = _Exchange(self._inner, tensor, pieces, self._next_tag)
        self._next_tag = (self._next_tag + 2 * len(pieces)) % _NUM_TAGS
        return exchange

    def _work(self) -> None:
        failure: Exception | None = None
        while (item := self._queue.get()) is not None:
            posted, tensors, work = item
            failure = failure or _finish(posted)
            # The messages go first: they hold the connections, and whoever is woken may count on their being gone.
            del item, posted
            work.complete(failure or tensors)
            del tensors, work


def _finish(posted: list[_Exchange] | Exception) -> Exception | None:
    """Carry them through; what went wrong, without the frames, which would hold the messages and these the connections."""
    if isinstance(posted, Exception):
        return posted
    try:
        for exchange in posted:
            exchange.finish()
    except Exception as error:  # noqa: BLE001 - every failure belongs to whoever waits for this work
        return error.with_traceback(None)
    return None
