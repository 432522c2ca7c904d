"""A process group whose collectives run on the accelerators (NCCL) and whose messages are staged over the host.

NCCL has one queue per pair of ranks, in which a receive that waits for its sender holds up everything behind it: two ranks
that both receive first wait for ever. Messages of ours are matched by tag instead and need no common order. NCCL takes no
tensors of the host either; these are staged, too.

Its work handles queue a wait in the current stream and call themselves done when queued. What needs to know that the device
has the result marks that stream and waits for the mark (`reduce.sender`); recorded times are those of such marks.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from autotune.runtime.control.network import Network
from autotune.runtime.control.topic import Topic
from autotune.runtime.device import DeviceHandle, Stamp, handle_of
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.runtime.transport.traced_group import Delivery
from autotune.runtime.transport.wrapped_group import WrappedGroup


class AcceleratorGroup(WrappedGroup):
    """`collectives` for the tensors of accelerators, `messages` for everything else.

    Threads: one at a time posts collectives, in the same order on all ranks; the thread that trains sets `recording` and
    calls `take` and `close`.
    """

    def __init__(self, collectives: dist.ProcessGroup, messages: StagedGroup) -> None:
        super().__init__(collectives)
        self._messages: StagedGroup | None = messages
        self.recording = False
        self._recorded: list[_Recorded] = []
        self._waits_on: Any = None
        self._topic: Topic | None = None

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        device, options = handle_of(listed[0]), opts if opts is not None else dist.AllreduceOptions()
        if not device.is_accelerator:
            return self._staged.allreduce(listed, options)
        ready = device.stamp() if self.recording else None
        work = self._real.allreduce(listed, options)
        if ready is not None:
            self._record(device, work, ready, sum(tensor.nbytes for tensor in listed))
        return work

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        group = self._real if handle_of(tensors[0]).is_accelerator else self._staged
        return group.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        group = self._real if handle_of(inputs[0]).is_accelerator else self._staged
        return group.allgather(outputs, inputs, opts if opts is not None else AllgatherOptions())

    def barrier(self, opts: Any = None) -> Any:
        return self._staged.barrier(opts)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._staged.send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._staged.recv(tensors, srcRank, tag)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return str(self._real.getBackendName())

    def take(self) -> list[Delivery]:
        """The collectives since the last call; waits until the device has finished them."""
        taken, self._recorded = self._recorded, []
        deliveries: list[Delivery] = []
        begun_s = 0.0
        for one in taken:  # they run one after another
            begun_s = max(one.posted_s, one.ready.seconds, begun_s)
            end_s = max(one.ended.seconds, begun_s)
            deliveries.append(
                Delivery(num_bytes=one.num_bytes, posted_s=begun_s, end_s=end_s, ready_s=one.ready.seconds)
            )
            begun_s = end_s
        return deliveries

    def watch(self, network: Network) -> None:
        """Give up the device's collectives as soon as another rank has failed; called by all ranks in the same order."""
        self._topic = network.topic()
        self._topic.open(self)

    def lost(self, why: str) -> None:  # noqa: ARG002 - what waits for the device finds out
        """Called by the network's thread: a rank has failed. A device that waits for it would wait for ever."""
        threading.Thread(target=self.abort, name="autotune-abort", daemon=True).start()

    def from_child(self, child: int, payload: bytes) -> None:
        """Nothing is sent in this topic."""

    def from_rank(self, rank: int, payload: bytes) -> None:
        """Nothing is sent in this topic."""

    def from_root(self, payload: bytes) -> None:
        """Nothing is sent in this topic."""

    def abort(self) -> None:
        """Let the device give up its collectives: another rank will not join them."""
        for group in (self._inner, getattr(self._inner, "_backend", None)):
            if group is not None and hasattr(group, "abort"):
                group.abort()

    def close(self, *, failed: bool) -> list[threading.Thread]:
        """Release both groups; `failed`: collectives that others will not join are given up."""
        if self._topic is not None:
            self._topic.close()
        if failed:
            self.abort()
        elif self._inner is not None and hasattr(self._inner, "shutdown"):
            self._inner.shutdown()
        threads = self._staged.close()
        self._inner = self._messages = None
        return threads

    @property
    def _real(self) -> Any:
        assert self._inner is not None
        return self._inner

    @property
    def _staged(self) -> StagedGroup:
        assert self._messages is not None
        return self._messages

    def _record(self, device: DeviceHandle, work: Any, ready: Stamp, num_bytes: int) -> None:
        """A stream of its own waits for the collective, so that the stream that posted it does not."""
        if self._waits_on is None:
            self._waits_on = device.new_stream()
        with device.on(self._waits_on):
            work.wait()
            ended = device.stamp()
        self._recorded.append(_Recorded(num_bytes, time.perf_counter(), ready, ended))


class _Recorded:
    """A collective while it is recorded."""

    __slots__ = ("ended", "num_bytes", "posted_s", "ready")

    def __init__(self, num_bytes: int, posted_s: float, ready: Stamp, ended: Stamp) -> None:
        self.num_bytes, self.posted_s, self.ready, self.ended = num_bytes, posted_s, ready, ended
