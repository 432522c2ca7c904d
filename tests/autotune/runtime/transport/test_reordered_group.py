"""A ring in another order than that of the ranks: to its user nothing but the order of the ring differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.transport.reordered_group import ReorderedGroup
from autotune.workloads.topology import flat_ring
from tests.autotune.simulate.test_edge_loads import tree
from tests.gloo_ranks import gloo_group, in_threads

ORDER = flat_ring(tree([4], islands=((0, 2), (1, 3))).topology)


def test_islands_are_entered_once() -> None:
    assert ORDER == (0, 2, 1, 3)


@pytest.mark.parametrize("order", [ORDER, (3, 1, 0, 2)])
def test_ranks_keep_their_numbers(order: tuple[int, ...]) -> None:
    store = dist.HashStore()

    def run(rank: int) -> tuple[Any, ...]:
        group = ReorderedGroup(gloo_group(store, order.index(rank), 4), order)
        total = torch.full((10,), float(rank))
        group.allreduce([total]).wait()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        rooted = torch.tensor([float(rank)])
        group.broadcast([rooted], options).wait()
        parts = [torch.zeros(1) for _ in range(4)]
        group.allgather([parts], [torch.tensor([float(rank)])]).wait()
        group.barrier().wait()
        received = torch.zeros(1)
        works = [
            group.recv([received], (rank - 1) % 4, 7),
            group.send([torch.tensor([float(rank)])], (rank + 1) % 4, 7),
        ]
        for work in works:
            work.wait()
        found = group.rank(), group.size(), total.tolist(), rooted.item(), torch.cat(parts).tolist(), received.item()
        group.close()
        return found

    assert in_threads(4, run) == [
        (rank, 4, [6.0] * 10, 1.0, [0.0, 1.0, 2.0, 3.0], float((rank - 1) % 4)) for rank in range(4)
    ]
