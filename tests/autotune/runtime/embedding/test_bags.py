"""What stands in a model in the place of its bags."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autotune.runtime.embedding.bags import bags_of, lookup_of, mean_of, take_out
from autotune.workloads.errors import SpecError


def test_pooled_bags_are_returned_once() -> None:
    model = nn.Sequential(nn.EmbeddingBag(5, 2, mode="sum"), nn.Identity())
    pulled = take_out(model, bags_of(model))
    pulled["0"].pooled = torch.ones(3, 2)
    assert model(torch.zeros(3, 1, dtype=torch.int64)).shape == (3, 2)
    with pytest.raises(SpecError, match="called twice"):
        model(torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize("options", [{"mode": "max"}, {"max_norm": 1.0}, {"padding_idx": 0}])
def test_options_that_servers_have_not_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="embedding bag '0' has"):
        bags_of(nn.Sequential(nn.EmbeddingBag(5, 2, **options)))
    with pytest.raises(SpecError, match=r"no nn\.EmbeddingBag"):
        bags_of(nn.Sequential(nn.Linear(2, 2)))


def test_lookups_are_stated_as_bags_are_called() -> None:
    ids, weight = torch.tensor([[1, 2], [3, 3]]), torch.randn(5, 2)
    closed = nn.EmbeddingBag.from_pretrained(weight, include_last_offset=True)
    for arguments, bag in (
        ((ids, None), nn.EmbeddingBag.from_pretrained(weight)),
        ((ids.flatten(), torch.tensor([0, 2])), nn.EmbeddingBag.from_pretrained(weight)),
        ((ids.flatten(), torch.tensor([0, 2, 4])), closed),
    ):
        lookup = lookup_of(arguments, bag)
        assert lookup.ids.tolist() == [1, 2, 3, 3]
        assert lookup.offsets.tolist() == [0, 2]
        sums = torch.stack([weight[1] + weight[2], 2 * weight[3]])
        torch.testing.assert_close(mean_of(sums, lookup), bag(*(one for one in arguments if one is not None)))
