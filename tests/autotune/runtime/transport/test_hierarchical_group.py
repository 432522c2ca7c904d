"""Hierarchical all-reduces against a plain sum. Ranks are threads of this process, connected by gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.transport import hierarchical_group
from autotune.runtime.transport.collective_groups import WrapGroup, hierarchical, hierarchical_shards
from autotune.runtime.transport.hierarchical_group import HierarchicalGroup
from tests.autotune.runtime.transport.test_shard_group import gloo_group, plain_sum, values
from tests.autotune.simulate.test_edge_loads import tree
from tests.gloo_ranks import in_threads

KINDS = {"hierarchical": hierarchical, "hierarchical-shards": hierarchical_shards}
TIMEOUT_S = 10.0


def on_ranks(cluster: Any, kind: str, run: Callable[[Any], Any], *, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """The result of `run` on each rank; every group is closed and its threads ended afterwards."""
    store, size = dist.HashStore(), len(cluster.devices)

    def rank_runs(rank: int) -> Any:
        group = KINDS[kind](WrapGroup(inner=gloo_group(store, rank, size, timeout_s), cluster=cluster))
        assert isinstance(group, HierarchicalGroup)
        threads = group._threads
        try:
            return run(group)
        finally:
            thread = group.close()
            del group
            thread.join(timeout=TIMEOUT_S)
            assert not any(one.is_alive() for one in threads)

    return in_threads(size, rank_runs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [(1,), (3,), (1, 1), (2, 2), (1, 3), (3, 2, 1)])
def test_the_sum_is_the_plain_sum(counts: tuple[int, ...], kind: str) -> None:
    """In float64 to 1e-12, and bitwise equal on all ranks."""
    numbers = (1, 2, 7, 100, 1003, 200_000)

    def run(group: HierarchicalGroup) -> list[torch.Tensor]:
        tensors = [values(group.rank(), number, torch.float64) for number in numbers]
        for work in [group.allreduce([tensor]) for tensor in tensors]:
            assert work.wait()
        return tensors

    found = on_ranks(tree(counts), kind, run)
    for tensors in found:
        for number, tensor, same in zip(numbers, tensors, found[0], strict=True):
            torch.testing.assert_close(tensor, plain_sum(sum(counts), number, torch.float64), rtol=0, atol=1e-12)
            assert torch.equal(tensor, same)


@pytest.mark.parametrize("num_tags", [hierarchical_group._NUM_TAGS, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_many_in_flight_at_once(monkeypatch: pytest.MonkeyPatch, kind: str, num_tags: int) -> None:
    """Of every type, also when tags are reused; whole numbers, whose sums are exact in any order."""
    monkeypatch.setattr(hierarchical_group, "_NUM_TAGS", num_tags)
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int64)

    def run(group: HierarchicalGroup) -> bool:
        time.sleep(0.02 * (group.size() - group.rank()))
        tensors = [
            torch.full((size,), group.rank() + 1).to(dtypes[size % 4]) for size in (*range(1, 30), 5000, 3, 20_000)
        ]
        for work in reversed([group.allreduce([tensor], dist.AllreduceOptions()) for tensor in tensors]):
            work.wait()
        return all(bool((tensor == 15).all()) for tensor in tensors)

    assert all(on_ranks(tree([2, 3]), kind, run))


def test_what_is_not_contiguous_or_has_no_dimension_or_needs_gradients() -> None:
    def run(group: HierarchicalGroup) -> list[torch.Tensor]:
        every_other, scalar = values(group.rank(), 60)[::2], torch.tensor(float(group.rank() + 1))
        parameter, nothing = torch.nn.Parameter(values(group.rank(), 5)), torch.zeros(0)
        first, second = values(group.rank(), 10), values(group.rank(), 20)
        for tensor in (every_other, scalar, parameter, nothing):
            group.allreduce([tensor]).wait()
        return [every_other, scalar, parameter.detach(), *group.allreduce([first, second]).get_future().wait()]

    for every_other, scalar, parameter, first, second in on_ranks(tree([2, 2]), "hierarchical", run):
        torch.testing.assert_close(every_other, plain_sum(4, 60)[::2])
        assert scalar == 10.0
        torch.testing.assert_close(parameter, plain_sum(4, 5))
        torch.testing.assert_close(first, plain_sum(4, 10))
        torch.testing.assert_close(second, plain_sum(4, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_leaves_fails_the_others(kind: str) -> None:
    """All that follows fails as well, and no wait lasts longer than the time limit."""

    def run(group: HierarchicalGroup) -> int:
        if group.rank() == 1:
            return 2
        failed = 0
        for _ in range(2):
            try:
                group.allreduce([torch.zeros(100)]).wait()
            except RuntimeError:
                failed += 1
        return failed

    begun_s = time.monotonic()
    assert on_ranks(tree([2, 2]), kind, run, timeout_s=2.0) == [2, 2, 2, 2]
    assert time.monotonic() - begun_s < 15


def test_sums_only() -> None:
    def run(group: HierarchicalGroup) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        with pytest.raises(ValueError, match="sums only"):
            group.allreduce([torch.zeros(1)], options)

    on_ranks(tree([1, 1]), "hierarchical", run)
