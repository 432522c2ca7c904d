"""Pooling and its gradient are those of `embedding_bag`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from autotune.runtime.embedding.layout import Pooling
from autotune.runtime.embedding.pooling import pool


@pytest.mark.parametrize(
    ("places", "offsets"),
    [([0, 3, 3, 1, 2, 0], [0, 2, 2, 5]), ([2, 2, 0], [0, 1, 2]), ([2, 2, 0], [0, 0, 2]), ([], [0, 0]), ([1], [0])],
)
def test_sums_and_gradients_of_bags(places: list[int], offsets: list[int]) -> None:
    rows = torch.randn(4, 3, dtype=torch.float64)
    ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    chosen, begins = torch.tensor(places, dtype=torch.int64), torch.tensor(offsets)
    found = pool(ours, Pooling(places=chosen, offsets=begins, num_bags=(len(offsets),)))
    expected = functional.embedding_bag(chosen, theirs, begins, mode="sum")
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
