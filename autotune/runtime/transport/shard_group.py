"""Owner shards: an all-reduce by owner-based reduce-scatter + all-gather, in which every rank owns a share of the tensor.

Every rank sends each owner its slice; the owner sums the slices and sends the sum to all ranks. A ring puts the same bytes
on every link and is best where links are equal. Here a rank behind a slow link owns little or nothing, sends and receives
its bytes once, and the fast links carry the rest (shares: `autotune.simulate.collectives.owned_shares`). With shares
1/len(servers) on some ranks and 0 elsewhere the same group is a parameter server: owners of equal shards sum the pushed
gradients and reply with the sum (Li et al., OSDI 2014; shares by bandwidth: BytePS, Jiang et al., OSDI 2020).

- A tensor is split into chunks, so that sums of the first chunk go back while slices of the next come in.
- All receives are posted before any send: gloo announces a receive on the connection that carries our own slices the other
  way, and behind these slices the announcement would delay the sender.
- Slices are added in rank order, not in order of arrival, so all runs and all ranks have bitwise equal results.
- Sums are received into the slice that was sent: the sum exists only after its owner has received the whole slice.

Left out: ranks of one host do not reduce among themselves first, which would save bytes where they share a link. Posting is
not limited either: sums queue behind slices that were posted before the sums were ready. No link is idle then, but the
first of many all-reduces in flight may wait for later ones.
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

from autotune.runtime.transport.work import FutureWork
from autotune.runtime.transport.wrapped_group import WrappedGroup

CHUNK_BYTES = 1 << 19
"""The size of a chunk of an owner's slice. The first chunk must arrive before a sum goes back, so small chunks are better:
50 MB over one slow link of three took 2.38 s in chunks of 2 MiB, 2.17 s of 1 MiB, 2.11 s of 512 or 256 KiB; bound 2.0 s."""
_FIRST_TAG, _NUM_TAGS = 1 << 19, 1 << 19
"""Our tags: above those of plain messages, and below those that paced groups add. They wrap around, which is safe even with
messages in flight: messages of one tag between two ranks keep their order."""
_SLICE, _SUM = 0, 1
"""The two phases; a chunk has a tag for each."""


def cut(num_elements: int, element_bytes: int, shares: Sequence[float], chunk_bytes: int) -> list[list[slice]]:
    """For each chunk, the slice of each owner. All owners have the same number of chunks, so that they finish together."""
    last = max(owner for owner, share in enumerate(shares) if share > 0)
    # A sum of floats may differ slightly from 1: the bounds after the last owner are exactly the end.
    bounds = [
        min(round(sum(shares[:owner]) * num_elements), num_elements) if owner <= last else num_elements
        for owner in range(len(shares) + 1)
    ]
    owned = list(pairwise(bounds))
    chunks = max(math.ceil(max(end - start for start, end in owned) * element_bytes / chunk_bytes), 1)
    return [
        [
            slice(start + (end - start) * chunk // chunks, start + (end - start) * (chunk + 1) // chunks)
            for start, end in owned
        ]
        for chunk in range(chunks)
    ]


@dataclass(frozen=True, slots=True)
class _Owned:
    """This rank's slice of one chunk, with the versions of all ranks in rank order, some of them in flight."""

    tag: int
    own: Tensor
    versions: list[Tensor]
    arriving: list[Any]

    def add_up(self) -> None:
        """Wait for all versions and write their sum into our own."""
        for work in self.arriving:
            work.wait()
        total = self.versions[0]
        for version in self.versions[1:-1]:
            total.add_(version)
        torch.add(total, self.versions[-1], out=self.own)


class _Exchange:
    """The all-reduce of one tensor. The posting thread constructs it, which posts; the worker thread calls `finish`.

    It holds the real group itself, so that posted work is finished even if the group is closed meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup, tensor: Tensor, chunks: list[list[slice]], first_tag: int) -> None:
        rank, size = group.rank(), group.size()
        self._group, self._tensor, self._whole = group, tensor, tensor.contiguous()
        # Each rank begins with another owner, so that they do not all send to the first one at once.
        self._others = [(rank + step) % size for step in range(1, size)]
        flat = self._whole.view(-1)
        self._slices = [[flat[owned] for owned in chunk] for chunk in chunks]
        self._first_tag = first_tag
        self._owned = [self._await_slices(number) for number in range(len(chunks) if size > 1 else 0)]
        self._works = [
            group.recv([self._slices[number][owner]], owner, self._tag(number, _SUM))
            for number, owner in self._messages()
        ]
        self._works += [
            group.send([self._slices[number][owner]], owner, self._tag(number, _SLICE))
            for number, owner in self._messages()
        ]

    def finish(self) -> None:
        """Sum and send back our own slices, then wait for the others."""
        for owned in self._owned:
            if owned is not None:
                owned.add_up()
                self._works += [self._group.send([owned.own], other, owned.tag) for other in self._others]
        for work in self._works:
            work.wait()
        if self._whole is not self._tensor:
            self._tensor.copy_(self._whole)

    def _messages(self) -> list[tuple[int, int]]:
        """(chunk, owner) of every slice that another rank owns, in the order of sending."""
        return [
            (number, owner)
            for number, chunk in enumerate(self._slices)
            for owner in self._others
            if chunk[owner].numel() > 0
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

    One thread at a time posts, in the same order on all ranks. The worker thread waits, sums and sends back, in the order of
    posting; it sleeps in gloo. The thread that trains calls `set_owners`, with nothing in flight, and `close`, after which no
    thread posts. A failure fails all all-reduces that follow, because a lost connection stays lost. While an all-reduce is in
    flight, an owner holds a copy of its slice for every other rank.
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
            raise ValueError(f"owner shards support sums only, not {opts.reduceOp}")
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        work = FutureWork()
        try:
            posted: Any = [self._post(tensor.detach()) for tensor in listed]
        except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
            posted = error.with_traceback(None)
        self._queue.put((posted, listed, work))
        return work

    def set_owners(self, shares: Sequence[float]) -> None:
        """Rank j owns `shares[j]` from the next all-reduce on; called by all ranks, with none in flight."""
        if len(shares) != self.size() or min(shares) < 0 or not math.isclose(sum(shares), 1.0):
            raise ValueError(
                f"shares are {list(shares)}: {self.size()} ranks need one each, none negative, summing to 1"
            )
        self._shares = tuple(shares)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "shards"

    def close(self) -> threading.Thread:
        """Release the real group. Its peers learn of it when the worker thread, which is returned, has finished all posted work."""
        self._queue.put(None)
        self._inner = None
        return self._thread

    def _post(self, tensor: Tensor) -> _Exchange:
        assert self._inner is not None
        chunks = cut(tensor.numel(), tensor.element_size(), self._shares, self._chunk_bytes)
        exchange = _Exchange(self._inner, tensor, chunks, self._next_tag)
        self._next_tag = (self._next_tag + 2 * len(chunks)) % _NUM_TAGS
        return exchange

    def _work(self) -> None:
        failure: Exception | None = None
        while (item := self._queue.get()) is not None:
            posted, tensors, work = item
            failure = failure or _finish(posted)
            # Release the messages first: they hold the connections, and a woken waiter relies on their release.
            del item, posted
            work.complete(failure or tensors)
            del tensors, work


def _finish(posted: list[_Exchange] | Exception) -> Exception | None:
    """Finish posted work. Returns its failure, without a traceback: its frames would hold messages, and these connections."""
    if isinstance(posted, Exception):
        return posted
    try:
        for exchange in posted:
            exchange.finish()
    except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
        return error.with_traceback(None)
    return None
