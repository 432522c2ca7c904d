"""What the runtime asks of the device of its tensors, and the CPU, of which all of it is true at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_CPU = torch.device("cpu")


class Mark:
    """A point of a stream. On the CPU nothing runs behind the host: every point has been reached."""

    def wait(self) -> None:
        """Let the current stream of the calling thread wait for it."""

    def wait_on_host(self) -> None:
        """Block the calling thread until the device has reached it."""


NO_MARK = Mark()


class Stamp:
    """When a point of a stream was reached, on the performance counter."""

    __slots__ = ("_at_s",)

    def __init__(self, at_s: float) -> None:
        self._at_s = at_s

    @property
    def seconds(self) -> float:
        """Blocks until the device has reached the point."""
        return self._at_s

    @property
    def is_reached(self) -> bool:
        """Whether the device has reached the point."""
        return True


class DeviceHandle:
    """The CPU. Threads: any thread may call any method."""

    is_accelerator = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bind(self) -> None:
        """Use this device in the calling thread."""

    def synchronize(self) -> None:
        """Block until the device has done everything that was queued."""

    def stamp(self) -> Stamp:
        """A stamp of this point of the current stream."""
        return Stamp(time.perf_counter())

    def mark(self) -> Mark:
        """A mark of this point of the current stream."""
        return NO_MARK

    def renew_clock(self) -> None:
        """Called between steps: an accelerator's clock is compared with the host's now and then."""

    def when_reached(self, stamp: Stamp, call: Callable[[], None], failed: Callable[[Exception], None]) -> None:  # noqa: ARG002 - on the CPU it has been
        """Call `call` once the device has reached `stamp`: here at once, on an accelerator from a thread of its own, in which
        `failed` is called with an error of the device or of `call`.
        """
        call()

    def new_stream(self) -> Any:
        """A stream beside the current one."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[None]:  # noqa: ARG002 - the CPU has no streams
        """Queue work of the calling thread on this stream."""
        return nullcontext()

    def keep_for_stream(self, tensors: Iterable[Tensor]) -> None:
        """The current stream uses these tensors: their memory must not be reused before it has."""

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """Memory of the host that the device copies to and from while the host goes on."""
        return torch.empty_like(tensor, device=_CPU)

    def to_device(self, tensor: Tensor) -> Tensor:
        """A copy on the device; the host does not wait for it."""
        return tensor.to(self.device)

    def reset_peak(self) -> None:
        """Begin to meter peak memory anew."""

    def peak_bytes(self, metered_bytes: int) -> int:
        """Peak memory since `reset_peak`: an accelerator's own count, on the CPU what we have metered."""
        return metered_bytes

    def release_memory(self) -> None:
        """Give memory that is not in use back to the driver."""

    def free_bytes(self) -> int | None:
        """Memory of the device that nothing holds; None for the CPU, whose memory is the host's."""
        return None

    @property
    def hardware(self) -> str:
        """The name of the hardware; empty for the CPU."""
        return ""


CPU = DeviceHandle(_CPU)
