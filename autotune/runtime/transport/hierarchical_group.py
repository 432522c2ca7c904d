"""An all-reduce that knows hosts: reduce-scatter inside each, a sum across hosts per shard, all-gather inside, over messages.

Which messages there are is data (`hierarchical_rounds`). Here they are carried out: each phase has a thread of its own, which
takes the all-reduces in the order of posting, so that one all-reduce crosses the NICs while others are summed inside. As in
`shard_group`, all receives are posted before any send, since gloo announces a receive on the connection that carries our own
bulk data. The order of additions is that of the rings, so all runs and all ranks have bitwise equal results.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.transport.hierarchical_rounds import HostTree, Message, Phase, Round
from autotune.runtime.transport.work import FutureWork
from autotune.runtime.transport.wrapped_group import WrappedGroup

_FIRST_TAG, _NUM_TAGS = 1 << 19, 1 << 19
"""Those of owner shards: a group has one collective."""


class _Sum:
    """The all-reduce of one tensor. The posting thread constructs it, which posts receives; each phase's thread calls `run`.

    It holds the real group itself, so that posted work is finished even if the group is closed meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup, tensor: Tensor, phases: tuple[Phase, ...], first_tag: int) -> None:
        self._group, self._tensor, self._whole = group, tensor, tensor.contiguous()
        self._flat = self._whole.view(-1)
        self._first_tag = first_tag
        self._phases = [[(one, *self._receive(one)) for one in phase] for phase in phases]
        self._sending: list[Any] = []

    def run(self, phase: int) -> None:
        """One phase, round by round."""
        for one, adding, writing in self._phases[phase]:
            self._sending += [
                self._group.send([self._slice(message)], message.peer, self._tag(message)) for message in one.sends
            ]
            for work, target, received in adding:
                work.wait()
                target.add_(received)
            for work in writing:
                work.wait()
        self._phases[phase] = []

    def finish(self) -> None:
        """After the last phase."""
        for work in self._sending:
            work.wait()
        if self._whole is not self._tensor:
            self._tensor.copy_(self._whole)

    def _receive(self, one: Round) -> tuple[list[tuple[Any, Tensor, Tensor]], list[Any]]:
        adding = []
        for message in one.adds:
            target = self._slice(message)
            received = torch.empty_like(target)
            adding.append((self._group.recv([received], message.peer, self._tag(message)), target, received))
        # A sum exists only after its ranks have received what we send of this slice: it is written over that.
        writing = [self._group.recv([self._slice(message)], message.peer, self._tag(message)) for message in one.writes]
        return adding, writing

    def _slice(self, message: Message) -> Tensor:
        return self._flat[message.start : message.stop]

    def _tag(self, message: Message) -> int:
        return _FIRST_TAG + (self._first_tag + message.tag) % _NUM_TAGS


class _Posted:
    """An `allreduce` on its way through the phases."""

    __slots__ = ("failure", "sums", "tensors", "work")

    def __init__(self, sums: list[_Sum], tensors: list[Tensor], failure: Exception | None) -> None:
        self.sums, self.tensors, self.failure, self.work = sums, tensors, failure, FutureWork()


class HierarchicalGroup(WrappedGroup):
    """`inner`, whose messages carry the all-reduces. Sums only.

    One thread at a time posts, in the same order on all ranks. Three threads, one per phase, hand each all-reduce on; the
    last one completes it. The thread that trains calls `close`, after which no thread posts. A failure fails all all-reduces
    that follow, because a lost connection stays lost. Until the last phase an all-reduce holds copies of about its own size.
    """

    def __init__(self, inner: dist.ProcessGroup, tree: HostTree) -> None:
        super().__init__(inner)
        self._tree = tree
        self._next_tag = 0
        self._failure: Exception | None = None  # set by any phase's thread, never unset
        self._queues: list[queue.SimpleQueue[_Posted | None]] = [queue.SimpleQueue() for _ in range(3)]
        self._threads = [
            threading.Thread(target=self._work, args=(phase,), name=f"autotune-phase{phase}", daemon=True)
            for phase in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise ValueError(f"hierarchical all-reduces support sums only, not {opts.reduceOp}")
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        sums: list[_Sum] = []
        failure: Exception | None = None
        try:
            sums = [self._post(tensor.detach()) for tensor in listed]
        except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
            failure = error.with_traceback(None)
        posted = _Posted(sums, listed, failure)
        self._queues[0].put(posted)
        return posted.work

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "hierarchical"

    def close(self) -> threading.Thread:
        """Release the real group. Its peers learn of it when the last thread, which is returned, has finished all posted work."""
        self._queues[0].put(None)
        self._inner = None
        return self._threads[-1]

    def _post(self, tensor: Tensor) -> _Sum:
        assert self._inner is not None
        size = tensor.numel(), tensor.element_size()
        posted = _Sum(self._inner, tensor, self._tree.phases(self.rank(), *size), self._next_tag)
        self._next_tag = (self._next_tag + self._tree.num_tags(*size)) % _NUM_TAGS
        return posted

    def _work(self, phase: int) -> None:
        is_last = phase == len(self._queues) - 1
        while (posted := self._queues[phase].get()) is not None:
            self._failure = posted.failure = posted.failure or self._failure or _run(posted.sums, phase, is_last)
            if not is_last:
                self._queues[phase + 1].put(posted)
            else:
                # Release the messages first: they hold the connections, and a woken waiter relies on their release.
                posted.sums = []
                posted.work.complete(posted.failure or posted.tensors)
            del posted
        if not is_last:
            self._queues[phase + 1].put(None)


def _run(sums: list[_Sum], phase: int, is_last: bool) -> Exception | None:
    """Carry out a phase. Returns its failure, without a traceback: its frames would hold messages, and these connections."""
    try:
        for one in sums:
            one.run(phase)
            if is_last:
                one.finish()
    except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
        return error.with_traceback(None)
    return None
