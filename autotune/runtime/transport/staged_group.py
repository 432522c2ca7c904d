"""A process group for tensors of an accelerator over one that carries tensors of the host: gloo, MPI, owner shards.

A collective is copied to pinned memory in a stream of its own, exchanged there, and copied back. So ranks with accelerators
of any make, and ranks without one, work in one job, and everything that is made of messages works as on CPUs. Messages are
matched by tag and need no common order: their order cannot deadlock, as that of NCCL's one queue per pair of ranks can.

The future of a collective is done when the result is on the device, not when a copy has been queued. A message needs no
thread: its receiver copies it to the device when it waits. Tensors of the host pass unchanged, in the same order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, Work
from torch.futures import Future

from autotune.runtime.device import NO_MARK, DeviceHandle, Mark, handle_of
from autotune.runtime.transport.traced_group import Delivery, set_recording, taken
from autotune.runtime.transport.work import FutureWork
from autotune.runtime.transport.wrapped_group import WrappedGroup

Post = Callable[[list[Tensor]], Any]
"""Posts the exchange of host tensors on the real group; returns its work."""


class StagedWork(FutureWork):
    """A collective: a waiter's current stream waits for the copy to the device, too."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: Mark | None = None

    def wait(self, timeout: Any = None) -> bool:
        super().wait(timeout)
        if self.arrived is not None:
            self.arrived.wait()
        return True


class _StagedMessage(Work):
    """A message: the thread that waits for one that it receives copies it to the device, in its current stream."""

    def __init__(self, ready: Mark = NO_MARK, copies: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        """`copies`: from the host to the device, once received; the memory on the device may be used after `ready`."""
        super().__init__()
        self._posted: Future[Any] = Future()
        self._ready, self._copies = ready, copies

    def post(self, outcome: Any) -> None:
        """The message has been posted on the real group, with this work; or this is why not."""
        self._posted.set_result(outcome)

    def wait(self, timeout: Any = None) -> bool:
        posted = self._posted.wait()
        if isinstance(posted, Exception):
            raise posted
        posted.wait(*(() if timeout is None else (timeout,)))
        copies, self._copies = self._copies, ()
        if copies:
            self._ready.wait()
        for target, source in copies:
            target.copy_(source, non_blocking=True)
        return True


@dataclass(slots=True)
class _Staged:
    """One exchange on its way."""

    post: Post
    tensors: list[Tensor]
    reads: bool
    """Whether the exchange reads the tensors."""
    writes: bool
    """Whether it changes them."""
    ready: Mark
    work: StagedWork | _StagedMessage


class StagedGroup(WrappedGroup):
    """`inner`, for tensors of `device` too.

    Threads: one at a time posts, in the same order on all ranks; receives may be posted by any. One worker thread copies to
    the host and posts there, in that order; another one waits for collectives, copies back and completes. `close` ends both.
    """

    def __init__(self, inner: dist.ProcessGroup, device: DeviceHandle) -> None:
        super().__init__(inner)
        self._device = device
        self._leaving: queue.SimpleQueue[_Staged | None] = queue.SimpleQueue()
        self._arriving: queue.SimpleQueue[tuple[_Staged, list[Tensor], Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._send_out, name="autotune-stage-out", daemon=True),
            threading.Thread(target=self._take_in, name="autotune-stage-in", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def recording(self) -> bool:
        """Whether the group inside records its collectives."""
        return bool(getattr(self._inner, "recording", False))

    @recording.setter
    def recording(self, on: bool) -> None:
        set_recording(self._inner, on=on)

    def take(self) -> list[Delivery]:
        """What the group inside has recorded."""
        return taken(self._inner)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        options = opts if opts is not None else dist.AllreduceOptions()
        return self._stage(lambda host: self._real.allreduce(host, options), _listed(tensors))

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        is_root = opts.rootRank == self.rank()
        return self._stage(
            lambda host: self._real.broadcast(host, opts), _listed(tensors), reads=is_root, writes=not is_root
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (parts,), (own,) = outputs, inputs
        options = opts if opts is not None else AllgatherOptions()

        def post(host: list[Tensor]) -> Any:
            return self._real.allgather([host[:-1]], [host[-1]], options)

        return self._stage(post, [*parts, own])

    def barrier(self, opts: Any = None) -> Any:
        options = opts if opts is not None else dist.BarrierOptions()
        return self._stage(lambda _: self._real.barrier(options), [])

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        work = _StagedMessage()
        self._stage(lambda host: self._real.send(host, dstRank, tag), _listed(tensors), writes=False, work=work)
        return work

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        """Posted at once, before any send that is queued here: see `shard_group`."""
        targets = _listed(tensors)
        host = [self._on_host(tensor) for tensor in targets]
        work = _StagedMessage(self._device.mark(), _differing(targets, host))
        work.post(self._real.recv(host, srcRank, tag))
        return work

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "staged"

    def close(self) -> list[threading.Thread]:
        """Release the real group, which informs its peers. The threads, which are returned, finish what was posted."""
        self._leaving.put(None)
        return self._threads

    @property
    def _real(self) -> Any:
        assert self._inner is not None
        return self._inner

    def _stage(
        self,
        post: Post,
        tensors: list[Tensor],
        *,
        reads: bool = True,
        writes: bool = True,
        work: _StagedMessage | None = None,
    ) -> StagedWork:
        whole, ready = StagedWork(), self._device.mark()
        staged = _Staged(post=post, tensors=tensors, reads=reads, writes=writes, ready=ready, work=work or whole)
        self._leaving.put(staged)
        return whole

    def _on_host(self, tensor: Tensor) -> Tensor:
        return self._device.pinned_like(tensor) if handle_of(tensor).is_accelerator else tensor

    def _send_out(self) -> None:
        self._device.bind()
        stream = self._device.new_stream()
        failure: Exception | None = None
        host: list[Tensor] = []
        while (staged := self._leaving.get()) is not None:
            posted: Any = failure
            try:
                if failure is None:
                    host = self._copied_out(staged, stream)
                    posted = staged.post(host)
            except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
                failure = posted = error.with_traceback(None)
            if isinstance(staged.work, _StagedMessage):
                staged.work.post(posted)
            else:
                self._arriving.put((staged, host, posted))
            del staged, host, posted
        self._arriving.put(None)
        self._inner = None

    def _copied_out(self, staged: _Staged, stream: Any) -> list[Tensor]:
        host = [self._on_host(tensor) for tensor in staged.tensors]
        if staged.reads:
            with self._device.on(stream):
                staged.ready.wait()
                for source, target in _differing(staged.tensors, host):
                    target.copy_(source, non_blocking=True)
                self._device.keep_for_stream(staged.tensors)
                copied = self._device.mark()
            copied.wait_on_host()
        return host

    def _take_in(self) -> None:
        self._device.bind()
        stream = self._device.new_stream()
        while (item := self._arriving.get()) is not None:
            staged, host, posted = item
            work = staged.work
            assert isinstance(work, StagedWork)
            outcome: Any = posted if isinstance(posted, Exception) else staged.tensors
            try:
                if not isinstance(posted, Exception):
                    posted.wait()
                    if staged.writes:
                        work.arrived = self._copied_in(staged, host, stream)
            except Exception as error:  # noqa: BLE001 - the waiter of this work raises it
                # Its frames would hold the real group, whose release tells the peers.
                outcome = error.with_traceback(None)
            work.complete(outcome)
            del item, staged, host, posted, work, outcome

    def _copied_in(self, staged: _Staged, host: list[Tensor], stream: Any) -> Mark:
        with self._device.on(stream):
            staged.ready.wait()
            for target, source in _differing(staged.tensors, host):
                target.copy_(source, non_blocking=True)
            self._device.keep_for_stream(staged.tensors)
            arrived = self._device.mark()
        arrived.wait_on_host()
        return arrived


def _listed(tensors: Any) -> list[Tensor]:
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]


def _differing(tensors: Sequence[Tensor], host: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(one, other) for one, other in zip(tensors, host, strict=True) if one is not other]
