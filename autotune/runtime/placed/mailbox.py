"""Messages between the ranks of a pipeline: tensors over a torch process group, receives posted ahead.

In the first step with a given cut of the batch, a header with the shape precedes each tensor. Later steps reuse the shapes and
post receives one task ahead, before sends: gloo announces a receive on the same connection, behind data that is already
queued there. Sends are waited for at the end of the step, or when their gradient has arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.errors import PeerLostError
from autotune.runtime.placed.routes import Message
from autotune.workloads.errors import SpecError

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DTYPES = (*_FLOATS, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)
_MAX_DIMS = 8
_NUM_MESSAGES = 1 << 17
"""Most messages of a pair of ranks in a step. Higher tags: headers, then gathers of shards, then shared gradients."""
_HEADER, _WITHIN, _SHARED = _NUM_MESSAGES, 2 * _NUM_MESSAGES, 3 * _NUM_MESSAGES
_SUMS = _SHARED + 1

Shape = tuple[torch.dtype, tuple[int, ...]]


class Mailbox:
    """One rank's messages. `begin` and `finish` enclose a step."""

    def __init__(
        self, group: dist.ProcessGroup, tags: dict[Message, int], *, timeout_s: float, device: torch.device
    ) -> None:
        if tags and max(tags.values()) >= _NUM_MESSAGES:
            raise SpecError(
                f"a pair of ranks exchanges {max(tags.values()) + 1} messages in a step: use fewer micro-batches"
            )
        self._group: dist.ProcessGroup | None = group
        self._tags, self._device = tags, device
        self._timeout = timedelta(seconds=timeout_s)
        self._known: dict[Hashable, dict[Message, Shape]] = defaultdict(dict)
        self._shapes: dict[Message, Shape] = {}
        self._has_headers = True
        self._posted: dict[Message, tuple[Any, Tensor]] = {}
        self._sends: dict[Message, list[tuple[Any, Tensor]]] = {}
        self._local: dict[Message, Tensor] = {}

    def begin(self, cut: Hashable) -> None:
        """Begin a step whose batch has this cut."""
        self._has_headers = cut not in self._known
        self._shapes = self._known[cut]

    def post(self, messages: Iterable[Message]) -> None:
        """Post receives for these messages, where shapes are known."""
        if self._has_headers:
            return
        for message in messages:
            if message in self._tags and message not in self._posted:
                dtype, shape = self._shapes[message]
                self._posted[message] = self._receive(message, torch.empty(shape, dtype=dtype, device=self._device))

    def take(self, message: Message) -> Tensor:
        """Wait for a message."""
        if message.sender == message.receiver:
            return self._local.pop(message)
        if self._has_headers:
            work, header = self._receive(
                message, torch.empty(2 + _MAX_DIMS, dtype=torch.int64, device=self._device), _HEADER
            )
            self._wait(work, message)
            found = header.tolist()
            self._shapes[message] = (_DTYPES[found[0]], tuple(found[2 : 2 + found[1]]))
            dtype, shape = self._shapes[message]
            self._posted[message] = self._receive(message, torch.empty(shape, dtype=dtype, device=self._device))
        self.post([message])
        work, tensor = self._posted.pop(message)
        self._wait(work, message)
        if message.is_gradient:  # the message that it is the gradient of has arrived
            for sent, _ in self._sends.pop(message.answered, ()):
                self._wait(sent, message)
        return tensor

    def send(self, message: Message, tensor: Tensor) -> None:
        """Send a message; its tensor must not change until the end of the step."""
        if message.sender == message.receiver:
            self._local[message] = tensor
            return
        assert self._group is not None
        tensor = tensor.contiguous()
        shape: Shape = (tensor.dtype, tuple(tensor.shape))
        tag, sends = self._tags[message], self._sends.setdefault(message, [])
        if self._has_headers:
            header = torch.tensor(_header(message, tensor), dtype=torch.int64, device=self._device)
            self._shapes[message] = shape
            sends.append((self._send(header, message.receiver, _HEADER + tag), header))
        elif self._shapes[message] != shape:
            raise SpecError(
                f"input {message.index} of part {message.reader!r} was {self._shapes[message][1]} and is {shape[1]} now: "
                "shapes may differ between micro-batches of different sizes only"
            )
        sends.append((self._send(tensor, message.receiver, tag), tensor))

    def swap(self, tensor: Tensor, ranks: Iterable[int], tag: int) -> dict[int, Tensor]:
        """All-gather of tensors of one shape among the shards of a block, which run it at the same time."""
        assert self._group is not None
        others = [rank for rank in ranks if rank != self._group.rank()]
        tensor = tensor.contiguous()
        buffers = {rank: torch.empty_like(tensor) for rank in others}
        works = [self._recv(buffers[rank], rank, _WITHIN + tag) for rank in others]
        works += [self._send(tensor, rank, _WITHIN + tag) for rank in others]
        for work in works:
            self._wait(work, "the other shards of a block")
        return {self._group.rank(): tensor, **buffers}

    def sum_over(self, flat: Tensor, ranks: tuple[int, ...]) -> Callable[[], None]:
        """Start to replace `flat` by its sum over the ranks, bit-identical on all; the returned function waits.

        Each rank sums its own shard, in rank order, and sends the sum to the others: as many bytes as a ring.
        """
        assert self._group is not None
        me = ranks.index(self._group.rank())
        shards = flat.tensor_split(len(ranks))
        others = [place for place in range(len(ranks)) if place != me]
        theirs = {place: torch.empty_like(shards[me]) for place in others if shards[me].numel()}
        receives = [(theirs[place], self._recv(theirs[place], ranks[place], _SHARED)) for place in theirs]
        sums = [self._recv(shards[place], ranks[place], _SUMS) for place in others if shards[place].numel()]
        copies = [(place, shards[place].clone()) for place in others if shards[place].numel()]
        sends = [self._send(copied, ranks[place], _SHARED) for place, copied in copies]

        def wait() -> None:
            parts = {me: shards[me]} | theirs
            for _, work in receives:
                self._wait(work, "shared gradients")
            if theirs:
                shards[me].copy_(torch.stack([parts[place] for place in sorted(parts)]).sum(0))
            results = [self._send(shards[me], ranks[place], _SUMS) for place in theirs]
            for work in (*sums, *sends, *results):
                self._wait(work, "shared gradients")

        return wait

    def finish(self) -> None:
        """Wait until all sends are completed."""
        for message, sends in self._sends.items():
            for work, _ in sends:
                self._wait(work, message)
        self._sends.clear()
        assert not self._posted
        assert not self._local

    def close(self) -> None:
        """Release the group: while a reference to it exists, peers do not detect that this rank has left."""
        self._posted.clear()
        self._sends.clear()
        self._local.clear()
        self._group = None

    def _receive(self, message: Message, buffer: Tensor, offset: int = 0) -> tuple[Any, Tensor]:
        return self._recv(buffer, message.sender, self._tags[message] + offset), buffer

    def _recv(self, buffer: Tensor, source: int, tag: int) -> Any:
        assert self._group is not None
        with _lost(f"rank {source} is gone"):  # if that is known before anything is posted
            return self._group.recv([_sendable(buffer)], source, tag)

    def _send(self, tensor: Tensor, target: int, tag: int) -> Any:
        assert self._group is not None
        with _lost(f"rank {target} is gone"):
            return self._group.send([_sendable(tensor)], target, tag)

    def _wait(self, work: Any, what: Message | str) -> None:
        with _lost(f"{_text(what)} did not come"):
            work.wait(self._timeout)


@contextmanager
def _lost(text: str) -> Iterator[None]:
    """Names what gloo's error means."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"{text}: {str(error).splitlines()[0][:200]}") from None


def _header(message: Message, tensor: Tensor) -> list[int]:
    if tensor.dtype not in _DTYPES or tensor.dim() > _MAX_DIMS:
        raise SpecError(
            f"input {message.index} of part {message.reader!r} is {tensor.dtype} with {tensor.dim()} dimensions: between parts "
            f"travel {', '.join(str(one).partition('.')[2] for one in _DTYPES)} of at most {_MAX_DIMS}"
        )
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *[0] * (_MAX_DIMS - tensor.dim())]


def _sendable(tensor: Tensor) -> Tensor:
    """The same memory in a type that gloo sends."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor


def _text(what: Message | str) -> str:
    if isinstance(what, str):
        return what
    kind = "the gradient of input" if what.is_gradient else "input"
    return (
        f"{kind} {what.index} of part {what.reader!r} of micro-batch {what.microbatch}, from rank {what.sender} "
        f"to rank {what.receiver},"
    )
