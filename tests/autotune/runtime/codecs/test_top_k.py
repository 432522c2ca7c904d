"""topk: which values go, in which order, and what stays."""

from __future__ import annotations

import math

import pytest
import torch

from autotune.runtime.codecs.top_k import TopK, largest
from autotune.workloads.plan import CompressionPlan
from tests.autotune.runtime.reduce.lockstep import Ranks


@pytest.mark.parametrize(
    ("values", "count", "places"),
    [
        ([1.0, -5.0, 3.0, 0.5], 2, [1, 2]),
        ([2.0, -2.0, 2.0, -2.0], 2, [0, 1]),
        ([1.0, 2.0, 1.0, 1.0, 3.0], 3, [0, 1, 4]),
        ([0.0, 0.0, 0.0], 1, [0]),
        ([1.0, math.nan, 2.0, -math.inf, math.inf], 2, [1, 3]),
        ([4.0, 3.0], 2, [0, 1]),
    ],
)
def test_the_largest_go_and_of_equals_the_first(values: list[float], count: int, places: list[int]) -> None:
    assert largest(torch.tensor(values), count).tolist() == places


def test_many_equals_are_chosen_the_same_way_every_time() -> None:
    values = torch.randint(-3, 4, (5000,), generator=torch.Generator().manual_seed(0)).float()
    chosen = largest(values, 1500)
    order = values.abs().sort(descending=True, stable=True).indices
    assert chosen.tolist() == sorted(order[:1500].tolist())


def test_what_is_sent_is_no_longer_owed_and_the_rest_is() -> None:
    owed = torch.tensor([1.0, -5.0, 3.0, 0.5])
    TopK(4, 0.5).send(owed)
    assert owed.tolist() == [1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [1e-9, 0.34, 1.0])
def test_ranks_that_choose_differently_are_added(share: float, dtype: torch.dtype) -> None:
    given = [torch.tensor([9.0, 1.0, 2.0], dtype=dtype), torch.tensor([1.0, 2.0, 8.0], dtype=dtype)]
    results = Ranks.of(CompressionPlan(codec="topk", top_share=share), ((3,),), 2).step(given)
    assert results[0].tolist() == ([10.0, 3.0, 10.0] if share == 1.0 else [9.0, 0.0, 8.0])


def test_what_stayed_behind_goes_when_it_has_grown() -> None:
    group = Ranks.of(CompressionPlan(codec="topk", top_share=0.5), ((2,),), 1)
    sent = [group.step([torch.tensor([3.0, 2.0])])[0].tolist() for _ in range(4)]
    assert sent == [[3.0, 0.0], [0.0, 4.0], [6.0, 0.0], [0.0, 4.0]]
