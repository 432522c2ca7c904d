"""A process group with NCCL's demands and promises, for tensors of the fake accelerator; gloo exchanges the values.

- CPU tensors and tensors that are not contiguous are refused.
- A collective runs on a stream of the group, after what the current stream had queued at the call. `wait()` returns at
  once and makes the current stream wait. Futures are done when the operation is queued; what is chained to them runs on
  a stream that waits. Outputs hold NaN until waited for.
- send and recv go through one queue per pair of ranks, where they run strictly one after the other: two ranks that both
  receive first, or both send first, wait for each other, which is noticed and raised as a DeadlockError.
- An operation whose peers fail is never completed: a stream that waits for it blocks `synchronize` until `abort()` of
  the group, after which it counts as complete without a result, or until the time limit (the watchdog), which raises.
- `barrier().wait()` makes the host wait, as torch's does.

Simpler than NCCL: an operation on a stream that waits for a collective blocks the host at its launch, until the values
are there; such waits are counted as emulation waits. A thread that would launch what a peer needs after such an
operation is blocked where a real one would not be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, Work
from torch.futures import Future

from tests.accelerator import streams
from tests.accelerator.counts import counts
from tests.accelerator.streams import Stream
from tests.accelerator.tensor import DeviceTensor
from tests.accelerator.timeline import Point
from tests.accelerator.transfer import DeadlockError, Exchange, Operation, Queue
from tests.gloo_ranks import gloo_group

SEND, RECV = 0, 1
HEADER_TAG, DATA_TAG = 1, 2


class FakeWork(Work):
    """One operation in a group's queue."""

    def __init__(self, device: int, stream: Stream, end: Point, tensors: list[DeviceTensor], *, blocks: bool) -> None:
        super().__init__()
        self._device, self._stream, self._end, self._tensors, self._blocks = device, stream, end, tensors, blocks

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream waits; the host does not, unless this is a barrier."""
        streams.current_line(self._device).wait(self._end)
        if self._blocks:
            counts.host_sync("barrier")
            self._end.synchronize()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._end.passed()

    def is_success(self) -> bool:
        return self._end.passed()

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> Future:  # type: ignore[type-arg]
        """Done at once; streams that wait for it wait for the operation."""
        future: Future[Any] = Future(devices=[torch.device(streams.NAME, self._device)])
        with streams.stream(self._stream):
            future.set_result(list(self._tensors))
        return future


class FakeNccl(dist.ProcessGroup):
    """The group of one rank. Collectives are called in the same order on all ranks, by one thread at a time."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta = timedelta(seconds=20)) -> None:
        super().__init__(rank, size)
        self.timeout_s = timeout.total_seconds()
        self.bytes_per_s = float(os.environ.get("FGPU_NCCL_BYTES_PER_S", "inf"))
        """The speed at which an operation moves the bytes of its tensors, at most."""
        self.aborts = 0
        """How often `abort` was called."""
        self.aborted_operations = 0
        """How many operations it released that were not complete."""
        self._inner: Any = gloo_group(dist.PrefixStore("fake-nccl", store), rank, size, self.timeout_s)
        self._lock = threading.Lock()
        self._queues: dict[tuple[int, int | None], Queue] = {}

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "fake-nccl"

    def _run(
        self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], exchange: Exchange, **options: Any
    ) -> Work:
        tensors = [*inputs, *outputs]
        _check(tensors)
        device = tensors[0].device.index
        queue = self._queue(device, options.get("peer"))
        operation = Operation(
            name=name,
            inputs=list(inputs),
            outputs=list(outputs),
            exchange=exchange,
            least_s=sum(tensor.numel() * tensor.itemsize for tensor in outputs or inputs) / self.bytes_per_s,
            timeout_s=self.timeout_s,
        )
        end = queue.put(operation, streams.current_line(device))
        return FakeWork(device, Stream(line=queue.line), end, tensors, blocks=options.get("blocks", False))

    def _queue(self, device: int, peer: int | None) -> Queue:
        with self._lock:
            if self.aborts:
                raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}")
            if (device, peer) not in self._queues:
                name = f"fake-nccl-{self.rank()}" + ("" if peer is None else f"-{peer}")
                self._queues[device, peer] = Queue(device, name)
            return self._queues[device, peer]

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Work:
        asked = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        average = asked == dist.ReduceOp.AVG
        inner = dist.AllreduceOptions()
        inner.reduceOp = dist.ReduceOp.SUM if average else asked

        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._inner.allreduce(given, inner).wait()
            for value, result in zip(given, results, strict=True):
                result.copy_(value / self.size() if average else value)

        return self._run("allreduce", tensors, tensors, exchange)

    def broadcast(self, tensors: list[Any], opts: Any = None) -> Work:
        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._inner.broadcast(given, opts or dist.BroadcastOptions()).wait()
            for value, result in zip(given, results, strict=True):
                result.copy_(value)

        return self._run("broadcast", tensors, tensors, exchange)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._inner.allgather([results], given, AllgatherOptions()).wait()

        return self._run("allgather", inputs, outputs[0], exchange)

    def _allgather_base(self, output: Any, given: Any, opts: Any = None) -> Work:
        def exchange(inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            parts = list(results[0].view(-1).chunk(self.size()))
            self._inner.allgather([parts], [inputs[0].view(-1)], AllgatherOptions()).wait()

        return self._run("allgather", [given], [output], exchange)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Work:
        return self._reduce_scatter(outputs[0], inputs[0], opts)

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any = None) -> Work:
        return self._reduce_scatter(output, [given], opts)

    def _reduce_scatter(self, output: Any, inputs: list[Any], opts: Any) -> Work:
        average = opts is not None and opts.reduceOp == dist.ReduceOp.AVG

        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            whole = torch.cat([part.reshape(-1) for part in given])
            self._inner.allreduce([whole], dist.AllreduceOptions()).wait()
            own = whole.chunk(self.size())[self.rank()].view_as(results[0])
            results[0].copy_(own / self.size() if average else own)

        return self._run("reduce_scatter", inputs, [output], exchange)

    def barrier(self, opts: Any = None) -> Work:
        one = torch.zeros(1, device=torch.device(streams.NAME, streams.index_of()))

        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._inner.allreduce(given, dist.AllreduceOptions()).wait()
            results[0].copy_(given[0])

        return self._run("barrier", [one], [one], exchange, blocks=True)

    def send(self, tensors: list[Any], dst: int, tag: int = 0) -> Work:
        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._agree(SEND, dst, given)
            self._inner.send(given, dst, DATA_TAG).wait()

        return self._run("send", tensors, [], exchange, peer=dst)

    def recv(self, tensors: list[Any], src: int, tag: int = 0) -> Work:
        def exchange(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            self._agree(RECV, src, results)
            self._inner.recv(results, src, DATA_TAG).wait()

        return self._run("recv", [], tensors, exchange, peer=src)

    def _agree(self, kind: int, peer: int, tensors: list[torch.Tensor]) -> None:
        """Meet the operation that is first in the peer's queue: it must be the other end of this one."""
        own = torch.tensor([kind, sum(tensor.numel() * tensor.itemsize for tensor in tensors)])
        other = torch.zeros_like(own)
        sent = self._inner.send([own], peer, HEADER_TAG)
        self._inner.recv([other], peer, HEADER_TAG).wait()
        sent.wait()
        if int(other[0]) == kind:
            verb = "send" if kind == SEND else "receive"
            raise DeadlockError(
                f"ranks {self.rank()} and {peer} both {verb} first: NCCL has one queue per pair of ranks, so both wait "
                "for ever; let one of them send and the other receive"
            )
        if int(other[1]) != int(own[1]):
            raise DeadlockError(f"rank {self.rank()} expects {int(own[1])} bytes, rank {peer} has {int(other[1])}")

    def abort(self) -> None:
        """Release all that wait for operations of this group, on this rank."""
        with self._lock:
            self.aborts += 1
            for queue in self._queues.values():
                self.aborted_operations += queue.abort()

    def shutdown(self) -> None:
        """Complete what is queued, unless the group was aborted, and end its threads."""
        with self._lock:
            queues = list(self._queues.values())
            self._queues.clear()
        for queue in queues:
            queue.shut_down(0.0 if self.aborts else self.timeout_s)


def _check(tensors: list[Any]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, DeviceTensor):
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")  # noqa: TRY004 - torch's
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        if tensor.device != tensors[0].device:
            raise RuntimeError(f"tensors on {tensors[0].device} and {tensor.device} in one operation")
