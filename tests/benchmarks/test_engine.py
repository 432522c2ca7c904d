"""CPU time of the sender itself: everything but the transport, which is replaced by one that completes at once."""

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
from autotune.runtime.control.network import Network
from autotune.runtime.reduce.send_order import SendOrder
from autotune.runtime.reduce.sender import Sender
from tests.gloo_ranks import gloo_group

NUM_PARTITIONS = 2000
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


class Completed:
    def __init__(self) -> None:
        self.is_done = threading.Event()

    def completed(self, _buffer: int, _received: Sequence[Tensor], _unused: Sequence[int]) -> None:
        self.is_done.set()

    def failed(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("credit_partitions", [1, 8])
def test_cpu_time_of_a_partition(benchmark: Any, credit_partitions: int) -> None:
    """On rank 0, which schedules for all ranks and posts its own: with a credit of one partition, each partition takes a
    decision, a message and a thread switch.
    """
    listener = Completed()
    group: Any = NoTransport(gloo_group(dist.HashStore(), 0, 1))
    order = SendOrder(num_ranks=1, partition_bytes=4, credit_bytes=4 * credit_partitions)
    sender = Sender(group, Network.alone(), lambda: order, listener)
    tensor, number = torch.zeros(NUM_PARTITIONS), iter(range(10**6))

    def exchange() -> float:
        listener.is_done.clear()
        begun_s = time.process_time()
        sender.mark_ready(next(number), 0, Round(kind=SUM, tensors=(tensor,)))
        assert listener.is_done.wait(30)
        return (time.process_time() - begun_s) / NUM_PARTITIONS

    taken: list[float] = []
    benchmark.pedantic(lambda: taken.append(exchange()), rounds=10, warmup_rounds=1)
    sender.close()
    benchmark.extra_info["processor_s_per_part"] = sorted(taken)[len(taken) // 2]
    benchmark.extra_info["bar_s"] = MOST_S
