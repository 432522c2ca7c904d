"""The store of process groups over the control network: torch's contract, and groups that open over it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.control.network import Network
from autotune.runtime.transport.network_store import NetworkStore
from tests.gloo_ranks import gloo_group, on_networks


@pytest.mark.parametrize("size", [1, 3, 11])
def test_every_rank_reads_what_any_rank_sets(size: int) -> None:
    def run(network: Network) -> list[Any]:
        store = NetworkStore(network)
        store.set(f"key{network.rank}", f"value {network.rank}")
        found = [store.get(f"key{rank}") for rank in range(size)]
        store.add("count", 1 + network.rank)
        store.set(f"added{network.rank}", b"")
        store.wait([f"added{rank}" for rank in range(size)])
        return [found, store.add("count", 0), store.check(["key0"]), store.check(["nothing"])]

    expected = [[f"value {rank}".encode() for rank in range(size)], size * (size + 1) // 2, True, False]
    assert on_networks(size, run) == [expected] * size


def test_changes_happen_in_one_order() -> None:
    def run(network: Network) -> bytes:
        return NetworkStore(network).compare_set("first", b"", str(network.rank).encode())

    assert len(set(on_networks(3, run))) == 1


def test_a_key_that_no_rank_sets_is_a_timeout() -> None:
    def run(network: Network) -> Any:
        NetworkStore(network).wait(["never"], timedelta(seconds=0.2))

    found = on_networks(2, run)
    assert all(isinstance(one, TimeoutError) and "never" in str(one) for one in found)


def test_gloo_opens_over_it() -> None:
    def run(network: Network) -> float:
        store = NetworkStore(network)
        for epoch in range(3):
            group = gloo_group(dist.PrefixStore(f"group{epoch}", store), network.rank, 3)
            tensor = torch.ones(2) * network.rank
            group.allreduce([tensor]).wait()
        return float(tensor[0])

    assert on_networks(3, run) == [3.0] * 3
