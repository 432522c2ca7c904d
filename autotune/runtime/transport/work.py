"""The handle of a collective that a worker thread completes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.futures import Future


class FutureWork(Work):
    """The handle of a collective. A worker thread calls `complete` once; any thread may wait."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Future[Any] = Future()
        # An exception raised by a callback reaches C++ waiters such as DDP's reducer; Future.set_exception would not.
        self._future = self._outcome.then(_value_or_raise)

    def complete(self, outcome: list[Tensor] | Exception) -> None:
        self._outcome.set_result(outcome)

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - torch's signature; the group limits the wait
        self._future.wait()
        return True

    def get_future(self) -> Future[Any]:
        return self._future


def _value_or_raise(outcome: Future[Any]) -> Any:
    value = outcome.value()
    if isinstance(value, Exception):
        raise value
    return value
