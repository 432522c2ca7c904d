"""int8: blocks with their own scales, sums at owners, and both roundings paid back."""

from __future__ import annotations

import pytest
import torch

from autotune.runtime.codecs.block_int8 import BlockInt8, quantised, restored
from autotune.runtime.codecs.protocol import GATHER, SWAP
from autotune.workloads.plan import CompressionPlan
from tests.autotune.runtime.reduce.lockstep import Ranks, exchange

INT8 = CompressionPlan(codec="int8")


def there_and_back(rows: torch.Tensor) -> torch.Tensor:
    return restored(quantised(rows), rows.shape[1], rows.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000])
def test_a_value_is_off_by_half_a_step_of_its_block_at_most(length: int, dtype: torch.dtype) -> None:
    rows = torch.randn(3, length, generator=torch.Generator().manual_seed(0), dtype=dtype)
    error = (there_and_back(rows) - rows).abs()
    for start in range(0, length, 256):
        block = slice(start, start + 256)
        steps = rows[:, block].abs().amax(dim=1, keepdim=True) / 127
        assert torch.all(error[:, block] <= steps * 0.5001)


def test_a_large_value_coarsens_its_own_block_only() -> None:
    rows = torch.full((1, 512), 1e-3)
    rows[0, 5] = 1e6
    found = there_and_back(rows)[0]
    assert not found[6:256].any()
    torch.testing.assert_close(found[256:], rows[0, 256:])


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e38])
def test_values_at_the_ends_of_the_range_stay_finite(size: float) -> None:
    rows = torch.tensor([[size, -size, size / 2]])
    found = there_and_back(rows)
    assert found.isfinite().all()
    assert torch.all((found - rows).abs() <= rows.abs())


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_owners_sum_beyond_the_range_of_int8(num_ranks: int) -> None:
    """Sums of many ranks pass 127 steps of each, and are still off by one rounding more only."""
    flat = torch.randn(700, generator=torch.Generator().manual_seed(0))
    found = Ranks.of(INT8, ((700,),), num_ranks).step([flat] * num_ranks)[0]
    assert torch.all((found - num_ranks * flat).abs() <= num_ranks * flat.abs().max() / 127)


def test_the_rounds_are_a_swap_and_a_gather_of_equal_slices() -> None:
    group = Ranks.of(INT8, ((10,),), 4)
    group.step([torch.randn(10)] * 4)
    swap, gather = (posted[0] for posted in group.posted)
    assert (swap.kind, [tensor.numel() for tensor in swap.tensors]) == (SWAP, [3 + 4] * 4)
    assert (gather.kind, [tensor.numel() for tensor in gather.tensors]) == (GATHER, [3 + 4])


def test_what_the_second_rounding_leaves_out_is_owed_by_the_owner_alone() -> None:
    codecs = [BlockInt8(8, rank=rank, num_ranks=2) for rank in range(2)]
    # Every block's scale is 1, so the first rounding leaves nothing; the sums' scale is 2, and odd ones lie between.
    owed = [
        torch.tensor([127.0, 1.0, 2.0, 3.0, 127.0, 4.0, 5.0, 6.0]),
        torch.tensor([127.0, 2.0, 2.0, 2.0, 127.0, 2.0, 2.0, 3.0]),
    ]
    first = [codec.send(values) for codec, values in zip(codecs, owed, strict=True)]
    assert not any(values.any() for values in owed)
    for codec, received, values in zip(codecs, exchange(first), owed, strict=True):
        codec.receive(received, values, torch.zeros(8))
    assert owed[0].nonzero().flatten().tolist() == [1, 3]
    assert owed[1].nonzero().flatten().tolist() == [6, 7]
