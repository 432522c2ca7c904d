"""The click data, and the tables as the model calls them."""

from __future__ import annotations

import torch

from autotune.workloads.models import dlrm
from autotune.workloads.models.dlrm import NO_ID, SIZES, bags, click_data, zipf_ids


def test_large_tables_have_the_published_shape() -> None:
    assert len(dlrm.CARDINALITIES) == len(dlrm.BAG_SIZES) == 26
    assert sum(dlrm.CARDINALITIES) == 204_184_588
    assert sum(SIZES["large"].slots) == 214
    assert max(SIZES["large"].num_rows) == 400_000
    assert min(SIZES["large"].num_rows) == dlrm.FEWEST_ROWS


def test_bags_are_empty_multi_hot_and_repeat_ids() -> None:
    size = SIZES["small"]
    _, ids, clicked = click_data(size, 500)
    own = dict(enumerate(ids.split(list(size.slots), dim=1)))[size.slots.index(max(size.slots))]
    held = (own != NO_ID).sum(1)
    assert set(held.tolist()) == set(range(max(size.slots) + 1))
    assert any(len(row[row >= 0].unique()) < int((row >= 0).sum()) for row in own)
    assert clicked.float().mean() == 0.5
    assert all(
        int(column.max()) < rows for column, rows in zip(ids.split(list(size.slots), 1), size.num_rows, strict=True)
    )


def test_bags_are_what_the_tables_hold() -> None:
    ids = torch.tensor([[1, 2, 5], [NO_ID, NO_ID, 6], [3, NO_ID, 7]])
    (first, starts), (second, others) = bags(ids, (2, 1))
    assert (first.tolist(), starts.tolist()) == ([1, 2, 3], [0, 2, 2])
    assert (second.tolist(), others.tolist()) == ([5, 6, 7], [0, 1, 2])


def test_ids_follow_a_zipf_distribution() -> None:
    drawn = zipf_ids(1000, (200_000,), torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=1000).sort(descending=True).values.double()
    expected = torch.arange(1, 1001, dtype=torch.float64) ** -dlrm.ZIPF
    torch.testing.assert_close(counts[:8] / counts[0], expected[:8], rtol=0.1, atol=0.0)


def test_lookups_name_the_tables_of_the_model() -> None:
    workload = dlrm.workload(size="tiny")
    names = dict(workload.model().named_modules())
    lookups = workload.lookups(workload.dataset()[:5])
    assert {type(names[name]) for name in lookups} == {torch.nn.EmbeddingBag}
    assert len(lookups) == 26
    assert all(len(offsets) == 5 for _, offsets in lookups.values())
