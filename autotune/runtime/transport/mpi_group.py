"""MPI as data plane: a process group whose all-reduce is a ring of point-to-point messages.

Open MPI's default all-reduce over TCP takes twice the time of a ring, its datatypes lack bf16, and a blocking call spins on
a core that other ranks need. Here a worker thread runs the ring and polls with short sleeps. A rank that aborts sends a
message to all others, because a pending MPI receive cannot be interrupted.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.errors import PeerLostError
from autotune.runtime.transport.work import FutureWork

_TAG_DATA, _TAG_ABORT = 1, 2
_POLL_S = 0.00005
_ABANDONED: list[Any] = []
"""Requests of failed collectives. MPI may still write to their buffers, so the buffers must stay allocated: a few buckets
per failed trial."""


class MpiGroup(dist.ProcessGroup):
    """Collectives over `comm`, a communicator that nothing else uses.

    One thread at a time posts, in the same order on all ranks; posting only enqueues. The worker thread is the only one that
    uses `comm`, except for the abort messages of `close`. It completes the work handles in the order of posting.
    """

    def __init__(self, comm: Any, *, timeout_s: float) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())  # type: ignore[call-arg]
        self._comm = comm
        self._timeout_s = timeout_s
        self._queue: queue.SimpleQueue[tuple[Any, list[Tensor], FutureWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="autotune-mpi", daemon=True)
        self._thread.start()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override] # noqa: ARG002 - torch's signature; sums only
        return self._enqueue(self._ring, tensors)

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        root = opts.rootRank
        return self._enqueue(lambda tensor: self._send_to_all(tensor, root), tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: ARG002 - torch's signature
        def gather(tensor: Tensor) -> None:
            for rank, part in enumerate(outputs[0]):
                if rank == self.rank():
                    part.copy_(tensor)
                self._send_to_all(part, rank)

        return self._enqueue(gather, inputs)

    def barrier(self, opts: Any = None) -> Any:  # noqa: ARG002 - torch's signature
        return self._enqueue(self._ring, [torch.zeros(self.size())])

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "mpi"

    def close(self, *, failed: bool) -> threading.Thread:
        """End the worker thread, which is returned. `failed`: also send abort messages, for which the peers poll."""
        if failed:
            for rank in range(self.size()):
                if rank != self.rank():
                    self._comm.Isend([b"", 0], dest=rank, tag=_TAG_ABORT)
        self._queue.put(None)
        return self._thread

    def _enqueue(self, run: Any, tensors: Any) -> FutureWork:
        work = FutureWork()
        self._queue.put((run, list(tensors) if isinstance(tensors, list | tuple) else [tensors], work))
        return work

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            run, tensors, work = item
            try:
                for tensor in tensors:
                    run(tensor)
            except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
                work.complete(error)
            else:
                work.complete(tensors)
            del item, run, tensors, work

    def _ring(self, tensor: Tensor) -> None:
        """Reduce-scatter, then all-gather; in each step a chunk goes to the right-hand neighbour."""
        size, rank = self.size(), self.rank()
        if size == 1:
            return
        contiguous = tensor.contiguous()
        chunks = list(contiguous.view(-1).tensor_split(size))
        for step in range(size - 1):
            received = torch.empty_like(chunks[(rank - step - 1) % size])
            self._exchange(chunks[(rank - step) % size], received)
            chunks[(rank - step - 1) % size].add_(received)
        for step in range(size - 1):
            self._exchange(chunks[(rank + 1 - step) % size], chunks[(rank - step) % size])
        if contiguous is not tensor:
            tensor.copy_(contiguous)

    def _exchange(self, outgoing: Tensor, incoming: Tensor) -> None:
        left, right = (self.rank() - 1) % self.size(), (self.rank() + 1) % self.size()
        self._finish(
            [
                self._comm.Irecv(_buffer(incoming), source=left, tag=_TAG_DATA),
                self._comm.Isend(_buffer(outgoing), dest=right, tag=_TAG_DATA),
            ]
        )

    def _send_to_all(self, tensor: Tensor, root: int) -> None:
        contiguous = tensor.contiguous()
        others = [rank for rank in range(self.size()) if rank != root]
        if self.rank() == root:
            self._finish([self._comm.Isend(_buffer(contiguous), dest=rank, tag=_TAG_DATA) for rank in others])
        else:
            self._finish([self._comm.Irecv(_buffer(contiguous), source=root, tag=_TAG_DATA)])
        if contiguous is not tensor:
            tensor.copy_(contiguous)

    def _finish(self, requests: list[Any]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not _all_done(requests):
            aborted = self._comm.Iprobe(tag=_TAG_ABORT)
            if aborted or time.monotonic() > deadline:
                _ABANDONED.extend(requests)
                raise PeerLostError("a peer left the collective" if aborted else "a peer did not answer in time")
            time.sleep(_POLL_S)


def _all_done(requests: list[Any]) -> bool:
    """Whether all have completed; each request is tested every time, because only a test makes it progress."""
    done = [request.Test() for request in requests]
    return all(done)


def _buffer(tensor: Tensor) -> Any:
    """The tensor's bytes, without a copy."""
    return [
        tensor.view(torch.uint8).numpy() if tensor.dim() else tensor.view(1).view(torch.uint8).numpy(),
        tensor.nbytes,
    ]
