"""Processor time of the schedule itself: everything but the transport, which is replaced by one that is done at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.codecs.protocol import SUM, Round
from autotune.runtime.reduce.send_order import Grants
from autotune.runtime.reduce.sender import Scheduler
from tests.gloo_ranks import gloo_group

NUM_PARTS = 2000
MOST_S = 50e-6


class Done:
    def wait(self) -> None:
        """It is."""


class NoTransport:
    """One rank; an all-reduce takes no time."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.allgather = group.allgather
        self.rank, self.size = group.rank, group.size

    def allreduce(self, _tensors: Any, _options: Any) -> Done:
        return Done()


class Told:
    def __init__(self) -> None:
        self.is_done = threading.Event()

    def landed(self, _unit: int, _received: Sequence[Tensor], _unused: Sequence[int]) -> None:
        self.is_done.set()

    def failed(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("credit_parts", [1, 8])
def test_processor_time_of_a_part(benchmark: Any, credit_parts: int) -> None:
    """Rank 0's, which decides for all and carries out its own: credit of one part is a decision, a message and a hand-over
    each for every part.
    """
    told = Told()
    group: Any = NoTransport(gloo_group(dist.HashStore(), 0, 1))
    grants = Grants(num_ranks=1, partition_bytes=4, credit_bytes=4 * credit_parts)
    scheduler = Scheduler(group, lambda: grants, told)
    tensor, number = torch.zeros(NUM_PARTS), iter(range(10**6))

    def exchange() -> float:
        told.is_done.clear()
        begun_s = time.process_time()
        scheduler.offer(next(number), 0, Round(kind=SUM, tensors=(tensor,)))
        assert told.is_done.wait(30)
        return (time.process_time() - begun_s) / NUM_PARTS

    taken: list[float] = []
    benchmark.pedantic(lambda: taken.append(exchange()), rounds=10, warmup_rounds=1)
    scheduler.close()
    benchmark.extra_info["processor_s_per_part"] = sorted(taken)[len(taken) // 2]
    benchmark.extra_info["bar_s"] = MOST_S
