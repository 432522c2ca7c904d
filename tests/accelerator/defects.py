"""Defects of fake accelerators, for the self-test; in ranks by `autotune doctor --load tests.accelerator.defective`.

- sum: one element of every all-reduce is wrong on this rank
- absent: this rank does not take part in all-reduces
- message: no message of this rank is sent
- clock: the device's events count three times as fast
- meter: the count of allocated memory reads 0
- freeze: a matmul never ends
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from autotune.runtime.transport.staged_group import StagedGroup
from tests.accelerator import copies
from tests.accelerator.device_module import DeviceModule
from tests.accelerator.nccl import FakeNccl
from tests.accelerator.streams import Event

FACTOR = 3.0


class WrongSums:
    """A group whose all-reduce adds one to the first element."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        self._group.allreduce(tensors, options).wait()
        tensors[0].view(-1)[0] += 1

        class Done:
            def wait(self) -> bool:
                return True

        return Done()


def wrong_sum() -> None:
    usual = FakeNccl.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        self._inner = WrongSums(self._inner)

    FakeNccl.__init__ = init


def absent() -> None:
    def allreduce(self: Any, tensors: Any, opts: Any = None) -> Any:
        raise RuntimeError("NCCL error: unhandled system error")

    FakeNccl.allreduce = allreduce


def lost_message() -> None:
    StagedGroup.send = lambda *_, **__: None


def wrong_clock() -> None:
    usual = Event.elapsed_time
    Event.elapsed_time = lambda self, end: FACTOR * usual(self, end)


def dead_meter() -> None:
    DeviceModule.max_memory_allocated = staticmethod(lambda device=None: 0)


def freeze() -> None:
    def never(func: Any, args: Any, kwargs: Any) -> Any:
        while True:
            time.sleep(60)

    copies.SPECIAL[torch.ops.aten.mm.default] = copies.SPECIAL[torch.ops.aten.mm.out] = never


DEFECTS: dict[str, Callable[[], None]] = {
    "sum": wrong_sum,
    "absent": absent,
    "message": lost_message,
    "clock": wrong_clock,
    "meter": dead_meter,
    "freeze": freeze,
}
