from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from workloads.buckets import bucket_indices, ddp_bucket_indices, partitions
from workloads.plan import DDP_BUCKET_BYTES, MIB, CommPlan


@pytest.mark.parametrize("bucket_bytes", [DDP_BUCKET_BYTES, 64 * 1024, 4 * MIB])
def test_ddp_buckets_are_those_that_torch_makes(bucket_bytes):
    """Against torch's own function, as its reducer calls it once it knows the order of gradients."""
    for seed in range(20):
        draw = random.Random(seed)
        sizes = [4 * draw.choice((1, 100, 10_000, 300_000, 2_000_000)) for _ in range(draw.randint(1, 30))]
        limits = [MIB, bucket_bytes] if bucket_bytes == DDP_BUCKET_BYTES else [bucket_bytes]
        tensors = [torch.empty(size // 4) for size in sizes]
        expected, _ = dist._compute_bucket_assignment_by_size(
            tensors, limits, [False] * len(sizes), list(range(len(sizes)))
        )
        assert ddp_bucket_indices(bucket_bytes, sizes) == expected


def test_our_buckets_do_not_pass_their_size_unless_one_gradient_does():
    sizes = [3, 3, 3, 20, 1, 1]
    assert bucket_indices(7, sizes) == [[0, 1], [2], [3], [4, 5]]


def test_buckets_do_not_mix_kinds():
    assert bucket_indices(100, [1, 1, 1], ["a", "b", "b"]) == [[0], [1, 2]]


@pytest.mark.parametrize("partition_bytes", [1, 7, 10, 64, 10**9])
def test_partitions_hold_every_byte_once_and_are_no_larger_than_asked(partition_bytes):
    sizes = [3, 50, 1, 1, 1, 20, 7]
    parts = list(partitions(CommPlan(partition_bytes=partition_bytes), sizes))
    assert sum(num_bytes for _, num_bytes in parts) == sum(sizes)
    assert all(num_bytes <= partition_bytes for _, num_bytes in parts)
    assert sorted({index for gradients, _ in parts for index in gradients}) == list(range(len(sizes)))


def test_small_neighbours_are_fused_and_large_gradients_cut():
    parts = list(partitions(CommPlan(partition_bytes=10), [4, 4, 4, 25]))
    assert parts == [([0, 1], 8), ([2], 4), ([3], 8), ([3], 8), ([3], 9)]
