from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from autotune.workloads.plan import DDP_BUCKET_BYTES, MIB
from autotune.workloads.plan.buckets import bucket_indices, ddp_bucket_indices, num_partitions, unit_indices


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
def test_units_hold_every_gradient_once_and_parts_are_about_as_large_as_asked(partition_bytes):
    sizes = [3, 50, 1, 1, 1, 20, 7]
    units = unit_indices(partition_bytes, sizes)
    assert [index for unit in units for index in unit] == list(range(len(sizes)))
    for unit in units:
        num_bytes = sum(sizes[index] for index in unit)
        count = num_partitions(partition_bytes, num_bytes, num_bytes)
        assert num_bytes / count <= 1.5 * partition_bytes
        assert count <= num_bytes


def test_neighbours_are_fused_until_they_reach_a_partition_and_large_units_cut():
    assert unit_indices(10, [4, 4, 4, 25, 1]) == [[0, 1, 2], [3], [4]]
    assert unit_indices(10, [4, 25, 1]) == [[0, 1], [2]]
    assert (num_partitions(10, 24, 24), num_partitions(10, 26, 26)) == (2, 3)
    assert num_partitions(1, 32, 4) == 4
    assert num_partitions(100, 7, 7) == 1


def test_a_layer_of_its_own_is_a_unit_whatever_its_size():
    layers = [None, "a", "a", "b", None, None]
    assert unit_indices(10, [4, 40, 1, 2, 3, 3], layers=layers) == [[0], [1, 2], [3], [4, 5]]


def test_units_do_not_mix_kinds():
    assert unit_indices(100, [4, 4, 4], kinds=["f", "f", "d"]) == [[0, 1], [2]]
    assert unit_indices(100, []) == []
