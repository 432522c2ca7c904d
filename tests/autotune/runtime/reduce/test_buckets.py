"""Which gradients travel together: last to first, cut by size, never two types in one."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from autotune.runtime.codecs.protocol import Identity
from autotune.runtime.reduce.bucketed import Bucket, assign_buckets

FLOAT = 4


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def sizes(buckets: list[list[nn.Parameter]]) -> list[list[int]]:
    return [[parameter.numel() for parameter in bucket] for bucket in buckets]


def test_buckets_run_from_the_last_parameter_to_the_first() -> None:
    """Backward finishes the last layer first: its gradients can leave first."""
    assert sizes(assign_buckets(parameters(1, 2, 3, 4), 100 * FLOAT)) == [[4, 3, 2, 1]]


def test_a_bucket_is_cut_before_it_would_pass_its_size() -> None:
    assert sizes(assign_buckets(parameters(5, 5, 5, 5, 5), 10 * FLOAT)) == [[5, 5], [5, 5], [5]]
    assert sizes(assign_buckets(parameters(5, 5, 5, 5, 5), 10 * FLOAT - 1)) == [[5], [5], [5], [5], [5]]


def test_a_parameter_larger_than_a_bucket_has_one_to_itself() -> None:
    assert sizes(assign_buckets(parameters(2, 50, 2, 2), 10 * FLOAT)) == [[2, 2], [50], [2]]


def test_buckets_of_one_byte_are_one_parameter_each() -> None:
    assert sizes(assign_buckets(parameters(1, 2, 3), 1)) == [[3], [2], [1]]


def test_every_trainable_parameter_is_in_exactly_one_bucket_at_every_size() -> None:
    model = nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 200), nn.Linear(200, 3, bias=False))
    expected = [id(p) for p in reversed(list(model.parameters()))]
    for bucket_bytes in (1, 40, 100, 1000, 7000, 10**6):
        buckets = assign_buckets(list(model.parameters()), bucket_bytes)
        assert [id(p) for p in itertools.chain(*buckets)] == expected
        for bucket in buckets:
            total = sum(p.numel() * FLOAT for p in bucket)
            assert total <= bucket_bytes or len(bucket) == 1


def test_frozen_parameters_are_left_out() -> None:
    mixed = parameters(1, 2, 3)
    mixed[1].requires_grad_(requires_grad=False)
    assert sizes(assign_buckets(mixed, 10**6)) == [[3, 1]]


def test_a_bucket_holds_one_type_only() -> None:
    mixed = [*parameters(1), *parameters(2, 3, dtype=torch.float64), *parameters(4)]
    assert sizes(assign_buckets(mixed, 10**6)) == [[4], [3, 2], [1]]


def test_sizes_are_bytes_not_numbers() -> None:
    assert sizes(assign_buckets(parameters(5, 5, dtype=torch.float64), 10 * FLOAT)) == [[5], [5]]
    assert sizes(assign_buckets(parameters(5, 5, dtype=torch.float16), 10 * FLOAT)) == [[5, 5]]


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_a_model_without_trainable_parameters_has_no_buckets(bucket_bytes: int) -> None:
    assert assign_buckets([], bucket_bytes) == []


def test_gradients_are_views_of_their_bucket() -> None:
    first, second = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))
    bucket = Bucket([first, second], Identity())
    bucket.reset()
    bucket.flat.copy_(torch.arange(10.0))
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert second.grad.tolist() == [6.0, 7.0, 8.0, 9.0]


def test_reset_zeroes_gradients_and_takes_back_what_zero_grad_let_go() -> None:
    parameter = nn.Parameter(torch.ones(3))
    bucket = Bucket([parameter], Identity())
    bucket.flat.fill_(7.0)
    parameter.grad = None
    bucket.missing = 0
    bucket.reset()
    (2 * parameter).sum().backward()
    assert bucket.flat.tolist() == [2.0, 2.0, 2.0]
    assert bucket.missing == 1
