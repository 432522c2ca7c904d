"""An exchange with other ranks on the time line: queued on a stream, done by a thread, put in place when waited for.

A queue is one stream of the device and one thread: its operations run one after the other, in the order of the calls.
An operation's result stays in memory of its own until a stream or the host has waited for it; until then its outputs
hold NaN.

`Queue.put` is called by any thread, one at a time per queue; `Transfer` is shared by the thread of its queue and by all
that wait for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tests.accelerator import races, timeline
from tests.accelerator.copies import poison
from tests.accelerator.counts import counts
from tests.accelerator.tensor import DeviceTensor
from tests.accelerator.timeline import Line, Point

Exchange = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Called with copies of the inputs and with the memory for the outputs."""


class WatchdogError(RuntimeError):
    """An operation has not been completed within the time limit."""


class DeadlockError(Exception):
    """The two ends of a pair wait for each other."""


PEER_LOST = RuntimeError, TimeoutError
"""What gloo raises when a peer is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """What is exchanged."""

    name: str
    inputs: list[DeviceTensor]
    outputs: list[DeviceTensor]
    exchange: Exchange
    least_s: float = 0.0
    """What it takes at least on the time line."""
    timeout_s: float


class Transfer:
    """One operation: an arrival for the streams that wait for it."""

    def __init__(
        self, operation: Operation, start_s: float, before: list[timeline.Arrival], foreign: list[timeline.Arrival]
    ) -> None:
        """`before`: what the queue has before it; `foreign`: what the current stream waits for from elsewhere."""
        self.start_s, self.inputs, self.outputs = start_s, operation.inputs, operation.outputs
        self._operation = replace(operation, inputs=[], outputs=[])
        self._queued_s = timeline.host.now()
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._end_s = 0.0
        self.error: Exception | None = None
        self.reason = "the peers have not taken part"
        self.completed = False
        self._after = foreign + [each for each in before if self._uses(each)]
        self._inputs: list[torch.Tensor] | None = None
        self._outputs = [torch.empty_like(tensor.raw) for tensor in operation.outputs]
        if not any(map(self._uses, self._after)):
            self._take_inputs()

    def _uses(self, other: timeline.Arrival) -> bool:
        """Whether it reads or writes what another one writes."""
        mine = {id(tensor.block) for tensor in [*self.inputs, *self.outputs]}
        return isinstance(other, Transfer) and any(id(tensor.block) in mine for tensor in other.outputs)

    def _take_inputs(self) -> None:
        self._inputs = [tensor.raw.clone() for tensor in self.inputs]
        for tensor in self.outputs:
            poison(tensor.raw)

    def run(self) -> None:
        """In the thread of the queue: exchange once the device has come to it."""
        for each in self._after:
            self.start_s = max(self.start_s, each.complete())
        if self._inputs is None:
            self._take_inputs()
        inputs, outputs = self._inputs or [], self._outputs
        timeline.host.sleep_until(self.start_s)
        if self.done():  # aborted meanwhile
            return
        self._operation.exchange(inputs, outputs)
        timeline.host.sleep_until(self.start_s + self._operation.least_s)
        self.finish()

    def finish(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._finished.is_set():  # aborted, while the thread of the queue went on
                return
            self._end_s, self.error = timeline.host.now(), error
            self._after, self._inputs, self.inputs = [], [], []
            self._finished.set()

    def abort(self) -> None:
        """Complete without a result: what is waited for is released, and the outputs stay as they are."""
        if not self._finished.is_set():
            self.outputs = []
            self.finish()

    def done(self) -> bool:
        return self._finished.is_set()

    def complete(self) -> float:
        left = self._queued_s + self._operation.timeout_s - timeline.host.now()
        if not self._finished.wait(max(left, 0.0)):
            raise WatchdogError(
                f"{self._operation.name} was not complete after {self._operation.timeout_s:g} s: {self.reason}"
            )
        if self.error is not None:
            raise self.error
        with self._lock:
            if not self.completed:
                for tensor, result in zip(self.outputs, self._outputs, strict=False):
                    tensor.raw.copy_(result)
                self.completed, self.outputs, self._outputs = True, [], []
        return self._end_s


class Queue:
    """A stream of exchanges and the thread that does them."""

    def __init__(self, device: int, name: str) -> None:
        self.line: Line = timeline.new_line(device)
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._open: list[Transfer] = []
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, operation: Operation, current: Line) -> Point:
        """Queue an operation after what the current stream has queued; where it ends."""
        with self._lock, timeline.LOCK:
            line = self.line
            own = line.pending = [each for each in line.pending if not each.completed]
            line.wait(current.point())
            timeline.merge(line.clock, timeline.host_clock)
            line.clock[line.key] = line.clock.get(line.key, 0) + 1
            counts.launch(operation.name)
            written = {id(tensor.block) for tensor in operation.outputs}
            uses = [
                (tensor.block, races.span_of(tensor.raw), False)
                for tensor in operation.inputs
                if id(tensor.block) not in written
            ]
            uses += [(tensor.block, races.span_of(tensor.raw), True) for tensor in operation.outputs]
            races.touch_all(line, operation.name, uses)
            foreign = [each for each in line.pending if each not in own]
            transfer = Transfer(operation, max(line.ready_s, timeline.host.now()), own, foreign)
            line.pending = [*own, transfer]
            self._open = [each for each in self._open if not each.done()] + [transfer]
            self._waiting.put(transfer)
            return line.point()

    def _work(self) -> None:
        failed: Exception | None = None
        while (transfer := self._waiting.get()) is not None:
            if transfer.done():
                continue
            if failed is None:
                failed = self._run(transfer)
            elif isinstance(failed, PEER_LOST):
                transfer.reason = f"an operation before it failed: {failed}"
            else:
                transfer.finish(failed)

    @staticmethod
    def _run(transfer: Transfer) -> Exception | None:
        try:
            transfer.run()
        except PEER_LOST as error:  # the operation is never completed, as NCCL's
            transfer.reason = str(error)
            return error
        except Exception as error:  # noqa: BLE001 - a wrong call: raised where it is waited for
            transfer.finish(error)
            return error
        return None

    def abort(self) -> int:
        """Release all that wait; how many operations were not complete."""
        with self._lock:
            open_ones = [each for each in self._open if not each.done()]
            for transfer in open_ones:
                transfer.abort()
            self._waiting.put(None)
            return len(open_ones)

    def shut_down(self, limit_s: float) -> None:
        """Let the thread finish what is queued."""
        self._waiting.put(None)
        self._thread.join(limit_s)
