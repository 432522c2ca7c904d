"""A process group whose all-reduces and messages take as long as they would on the emulated links.

It wraps any real process group and is one itself, so torch DDP, its hooks and our own reducer run on it unchanged. The real
collective starts at once; a delivery thread completes it when, by the virtual clocks of the links, the last byte has
arrived. A message from rank to rank carries its arrival time in a second, tiny message; its receiver sleeps until then when
it waits, and needs no thread. Broadcast, all-gather and barrier are not paced: only the first step waits for them.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.traced_group import Delivery
from autotune.runtime.transport.work import FutureWork
from autotune.runtime.transport.wrapped_group import WrappedGroup
from autotune.simulate.collectives import all_reduce_latency_s
from autotune.simulate.edge_loads import hop_bytes, ring_bytes
from autotune.workloads.cluster import Cluster
from autotune.workloads.topology import flat_ring

_ARRIVAL_TAG = 1 << 20
"""Added to a message's tag for the message that carries its arrival time, on the monotonic clock of the machine."""

_ALL_TO_ALL_TAG = (1 << 19) - 1
"""Of all-to-alls, whose messages between two ranks keep their order."""


class MessageWork(Work):
    """A message in flight: completes with the real one, and not before the time in `due_s`."""

    def __init__(self, real: list[Any], due_s: Tensor) -> None:
        super().__init__()
        self._real = real
        self._due_s = due_s

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - torch's signature; the group limits the wait
        for work in self._real:
            work.wait()
        time.sleep(max(float(self._due_s) - time.monotonic(), 0.0))
        return True


class PacedGroup(WrappedGroup):
    """`inner`, as slow as the links of `cluster`. `epoch` distinguishes the groups of one job.

    One thread at a time posts, in the same order on all ranks. The delivery thread waits for the real collectives, completes
    the work handles and, before that, appends to the deliveries. The thread that trains calls `take`, which returns the
    deliveries of all completed collectives, and `close`, after which no thread posts.
    """

    def __init__(self, inner: dist.ProcessGroup, cluster: Cluster, clocks: LinkClocks, *, epoch: int) -> None:
        super().__init__(inner)
        self._deliveries: list[Delivery] = []
        self._topology = cluster.topology
        self._ring_order = flat_ring(cluster.topology)
        self._latency_s = all_reduce_latency_s("ring", cluster)
        self._clocks = clocks
        self._epoch = epoch
        self._sequence = 0
        self._queue: queue.SimpleQueue[tuple[int, float, Any, list[Tensor], FutureWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="autotune-links", daemon=True)
        self._thread.start()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        assert self._inner is not None
        self._clocks.post(self._sequence, self.rank())
        posted_s = time.monotonic()
        real = self._inner.allreduce(listed, opts if opts is not None else dist.AllreduceOptions())
        work = FutureWork()
        self._queue.put((self._sequence, posted_s, real, listed, work))
        self._sequence += 1
        return work

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        """Occupies the links from now on; the work completes for the sender when its last byte has left them."""
        assert self._inner is not None
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        loads = hop_bytes(self._topology, self.rank(), dstRank, num_bytes)
        sent_s = torch.tensor(self._clocks.reserve(loads, time.monotonic()), dtype=torch.float64)
        arrival_s = sent_s + self._topology.latency_s(self.rank(), dstRank)
        notice = self._inner.send([arrival_s], dstRank, tag + _ARRIVAL_TAG)
        return MessageWork([notice, self._inner.send(tensors, dstRank, tag)], sent_s)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        assert self._inner is not None
        arrival_s = torch.zeros((), dtype=torch.float64)
        notice = self._inner.recv([arrival_s], srcRank, tag + _ARRIVAL_TAG)
        return MessageWork([notice, self._inner.recv(tensors, srcRank, tag)], arrival_s)

    def alltoall_base(self, output: Any, given: Any, outputSplits: Any, inputSplits: Any, opts: Any = None) -> Any:  # noqa: ARG002, N803 - torch's names
        """Messages between all pairs of ranks, of rows of the tensors."""
        found, own = output.split(list(outputSplits)), given.split(list(inputSplits))
        ranks = [(self.rank() + step) % self.size() for step in range(1, self.size())]
        works = [self.recv([found[rank]], rank, _ALL_TO_ALL_TAG) for rank in ranks if len(found[rank])]
        works += [self.send([own[rank]], rank, _ALL_TO_ALL_TAG) for rank in ranks if len(own[rank])]
        found[self.rank()].copy_(own[self.rank()])
        return MessageWork(works, torch.zeros((), dtype=torch.float64))

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "paced"

    def take(self) -> list[Delivery]:
        """The deliveries since the last call."""
        taken, self._deliveries = self._deliveries, []
        return taken

    def close(self) -> threading.Thread:
        """Release the real group, which informs its peers. The delivery thread ends after its last wait, and is returned."""
        self._queue.put(None)
        self._inner = None
        return self._thread

    def _deliver(self) -> None:
        while (item := self._queue.get()) is not None:
            sequence, posted_s, real, tensors, work = item
            try:
                real.wait()
                self._pass_time(sequence, posted_s, sum(t.numel() * t.element_size() for t in tensors))
            except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
                work.complete(error)
            else:
                work.complete(tensors)
            del item, real, tensors, work

    def _pass_time(self, sequence: int, posted_s: float, num_bytes: int) -> None:
        key = (self._epoch << 24) + sequence + 1
        loads = ring_bytes(self._topology, self._ring_order, num_bytes)
        _, end_s = self._clocks.finish_collective(sequence, key, loads, self._latency_s)
        ahead_s = end_s - time.monotonic()
        time.sleep(max(ahead_s, 0.0))
        done = Delivery(
            num_bytes=num_bytes, posted_s=posted_s, end_s=max(end_s, time.monotonic()), late_s=max(-ahead_s, 0.0)
        )
        self._deliveries.append(done)
