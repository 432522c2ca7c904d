"""One rank's sending: report what is ready, post what is scheduled in that order, report what has completed.

One thread waits for posted collectives, in order (`completions`), that of the control network for messages of the
schedule (`coordinator`); neither spins. A failure on any rank reaches all ranks: rank 0 stops scheduling and sends the
reason, and every waiting thread wakes with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.protocol import GATHER, SUM, Round
from autotune.runtime.control.network import Network
from autotune.runtime.control.ready import ReadyRound, ScheduledPartition
from autotune.runtime.device import CPU, DeviceHandle, Stamp
from autotune.runtime.errors import PeerLostError
from autotune.runtime.reduce.completions import CompletionQueue
from autotune.runtime.reduce.coordinator import Coordinator, Endpoint, Follower
from autotune.runtime.reduce.send_order import FixedOrder, SendOrder
from autotune.runtime.transport.traced_group import Delivery
from autotune.workloads.errors import SpecError

_END_S = 5.0
"""How long a rank that ends waits for the others to end too."""
_FAILED_S = 1.0
"""The same for a rank that has failed: what it waits for may never come."""
_REFUSAL = re.compile(r"rank \d+: SpecError: (?P<text>.*)", re.DOTALL)
"""A SpecError of one rank is raised on all ranks, with the same text."""
_TAGS = 1 << 16
"""Tags of gathers and swaps begin here; as many may be in flight at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """A completed partition; times are those of the monotonic clock."""

    buffer: int
    round: int
    partition: int
    num_bytes: int
    ready_s: float
    posted_s: float
    completed_s: float

    def as_delivery(self) -> Delivery:
        again = f" round {self.round}" if self.round else ""
        return Delivery(
            name=f"buffer {self.buffer}{again} partition {self.partition}",
            num_bytes=self.num_bytes,
            ready_s=self.ready_s,
            posted_s=self.posted_s,
            end_s=self.completed_s,
        )


class Listener(Protocol):
    """Receives completions and failures. Called by threads of the sender and by threads that wait in it."""

    def completed(self, buffer: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        """A round of the buffer has been exchanged."""

    def failed(self, error: Exception) -> None:
        """Nothing more will complete."""


@dataclass(slots=True)
class _OpenRound:
    """A round between being ready and the completion of its last partition."""

    round: Round
    ready: Stamp
    received: tuple[Tensor, ...] = ()
    num_completed: int = 0


@dataclass(frozen=True, slots=True)
class _Posted:
    """A partition whose collectives this rank has joined."""

    partition: ScheduledPartition
    works: list[Any]
    posted_s: float


class Sender:
    """Exchanges rounds of fusion buffers over `group` in an order that all ranks share. All ranks construct it
    together.

    Threads: any thread may call any method but `close`, which the training thread calls once. Partitions are posted by
    one thread at a time: by any thread on rank 0, by the network's thread elsewhere, by the thread that calls `mark_ready`
    in a fixed order. Completions are serialized by the completion queue. An open round is added
    before the round is reported ready and removed by its last completion, so its entry needs no lock.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a sender is made of
        self,
        group: dist.ProcessGroup,
        network: Network,
        make_order: Callable[[], SendOrder],
        listener: Listener,
        fixed_order: FixedOrder | None = None,
        device: DeviceHandle = CPU,
    ) -> None:
        """With a `fixed_order` ranks exchange no schedule, and use the control network for failures only.

        An accelerator posts from one stream of its own and waits for completions in another: neither holds up the stream
        that computes, nor the other.
        """
        self._group = group
        self._device = device
        self._posts_on, self._waits_on = device.new_stream(), device.new_stream()
        self._listener = listener
        self._fixed_order = fixed_order
        self.completes_early = fixed_order is None
        """Whether partitions complete as soon as they have arrived, or may wait for a thread in `wait_until`."""
        self._open: dict[tuple[int, int], _OpenRound] = {}
        self._num_messages = 0
        self._has_failed = False
        self.recording = False
        self._transfers: list[Transfer] = []
        self._completions = CompletionQueue(self._complete, waiters_help=not device.is_accelerator)
        self._endpoint = self._open_endpoint(network, make_order)

    def _open_endpoint(self, network: Network, make_order: Callable[[], SendOrder]) -> Endpoint:
        assert network.size == self._group.size(), "the control network is that of other ranks than the group"
        if network.rank == 0:
            return Coordinator(network, make_order(), self._post, self._fail)
        return Follower(network, self._post, self._fail)

    def mark_ready(
        self, buffer: int, number: int, content: Round, unused: Sequence[int] = (), *, position: int = 0
    ) -> None:
        """This rank is ready for round `number` of the buffer, once its device has reached this point of its stream."""
        opened = _OpenRound(round=content, ready=self._device.stamp())
        self._open[buffer, number] = opened
        ready = ReadyRound(
            buffer=buffer,
            round=number,
            num_bytes=content.num_bytes,
            num_elements=content.tensors[0].numel(),
            cuttable=content.kind == SUM,
            unused=unused,
            position=position,
        )
        if self._fixed_order is None:
            self._device.when_reached(opened.ready, partial(self._endpoint.mark_ready, ready), self._give_up)
            return
        for partition in self._fixed_order.mark_ready(ready):
            self._post(partition)

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Block until completions make `is_done` true, or until the timeout; whether it is true."""
        return self._completions.wait_until(is_done, timeout_s)

    def left(self) -> list[int]:
        """Ranks that have ended their training."""
        return self._endpoint.left()

    def report_late(self, step: int) -> None:
        """This rank has waited for long: rank 0 logs for which ranks."""
        self._endpoint.late(step)

    def take(self) -> list[Transfer]:
        """What has completed while recording, since the last call."""
        taken, self._transfers = self._transfers, []
        return taken

    def close(self, error: BaseException | None = None) -> None:
        """End together with the other ranks; with an error, theirs end too."""
        limit_s = _END_S if error is None else _FAILED_S
        self._endpoint.leave(f"{type(error).__name__}: {error}" if error is not None else None, limit_s)
        self._completions.close(limit_s)
        del self._group

    def _fail(self, why: str) -> None:
        refusal = _REFUSAL.fullmatch(why)
        lost = PeerLostError(f"the exchange of gradients has ended: {why}")
        self._listener.failed(SpecError(refusal["text"]) if refusal is not None else lost)
        self._completions.wake()

    def _post(self, partition: ScheduledPartition) -> None:
        opened = self._open[partition.buffer, partition.round]
        content = opened.round
        posted_s = time.monotonic()
        with self._device.on(self._posts_on):
            if content.kind == SUM:
                tensor = content.tensors[0]
                size = tensor.numel()
                start, end = (size * (partition.partition + more) // partition.num_partitions for more in (0, 1))
                opened.received = content.tensors
                works = [self._group.allreduce([tensor[start:end]], dist.AllreduceOptions())]
            else:
                works = self._post_messages(opened, partition)
        self._completions.put(_Posted(partition, works, posted_s), now=self.completes_early or self.recording)

    def _post_messages(self, opened: _OpenRound, partition: ScheduledPartition) -> list[Any]:
        """To each rank its own tensor (swap) or the same one (gather). Receives are posted before sends."""
        content, rank, size = opened.round, self._group.rank(), self._group.size()
        tag = _TAGS + self._num_messages % _TAGS
        self._num_messages += 1
        own = content.tensors[0 if content.kind == GATHER else rank]
        opened.received = tuple(
            own
            if source == rank
            else own.new_empty(partition.size_on(source) if content.kind == GATHER else own.numel())
            for source in range(size)
        )
        peers = [peer for peer in range(size) if peer != rank]
        arriving = [
            self._group.recv([opened.received[peer]], peer, tag) for peer in peers if len(opened.received[peer])
        ]
        outgoing = [(content.tensors[0 if content.kind == GATHER else peer], peer) for peer in peers]
        return arriving + [self._group.send([tensor], peer, tag) for tensor, peer in outgoing if len(tensor)]

    def _complete(self, posted: _Posted) -> None:
        if self._has_failed:
            return
        try:
            with self._device.on(self._waits_on):
                self._wait_for(posted)
        except Exception as error:  # noqa: BLE001 - every failure is raised by the threads that wait
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._has_failed = True
        self._listener.failed(error)
        self._endpoint.fail(f"{type(error).__name__}: {error}")
        self._completions.wake()

    def _wait_for(self, posted: _Posted) -> None:
        for work in posted.works:
            work.wait()
        self._device.mark().wait_on_host()  # only now has the device what was sent; before, the wait was queued at most
        partition = posted.partition
        if self._fixed_order is None:
            self._endpoint.completed(partition.num_bytes)
        opened = self._open[partition.buffer, partition.round]
        if self.recording:
            self._record(partition, opened, posted.posted_s)
        opened.num_completed += 1
        if opened.num_completed == partition.num_partitions:
            del self._open[partition.buffer, partition.round]
            self._device.keep_for_stream(opened.received)
            self._listener.completed(partition.buffer, opened.received, partition.unused)

    def _record(self, partition: ScheduledPartition, opened: _OpenRound, posted_s: float) -> None:
        self._transfers.append(
            Transfer(
                buffer=partition.buffer,
                round=partition.round,
                partition=partition.partition,
                num_bytes=partition.num_bytes,
                ready_s=opened.ready.seconds,
                posted_s=posted_s,
                completed_s=time.monotonic(),
            )
        )
