"""The samples of each rank: slices of one permutation, every sample once per epoch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from autotune.runtime.data.batches import Batches


class ListStyle(Dataset[Any]):
    """A list-style data set: one sample at a time."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert isinstance(index, int)
        return torch.full((3,), float(index)), index


def numbers(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(num_samples), 10 * torch.arange(num_samples))


def ranks(num_samples: int, split: tuple[int, ...], seed: int = 0) -> list[Batches]:
    return [Batches(numbers(num_samples), split, rank, seed=seed) for rank in range(len(split))]


def taken(batches: list[Batches], step: int) -> list[int]:
    """The samples of all ranks in a step, in rank order."""
    return [int(index) for each in batches for index in each.indices(step)[0]]


# --- every sample once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_samples", "split"),
    [
        (64, (16, 16, 16, 16)),
        (100, (27, 18, 13, 6)),
        (7, (5, 3)),
        (64, (64,)),
        (65, (64, 0)),
        (10, (0, 3, 0)),
        (5, (1, 1)),
    ],
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_sample_is_used_exactly_once_per_epoch(num_samples: int, split: tuple[int, ...], epoch: int) -> None:
    batches = ranks(num_samples, split)
    steps = batches[0].steps_per_epoch
    used = [index for step in range(epoch * steps, (epoch + 1) * steps) for index in taken(batches, step)]
    assert sorted(used) == list(range(num_samples))


def test_every_sample_is_used_exactly_once_under_splits_that_change_every_step() -> None:
    """For every split of a step, all ranks together take the same samples."""
    generator = random.Random(0)
    splits = [(27, 18, 13, 6), (16, 16, 16, 16), (64, 0, 0, 0), (1, 1, 1, 61)]
    by_split = {split: ranks(200, split) for split in splits}
    steps = by_split[splits[0]][0].steps_per_epoch
    assert steps == 4
    used = [index for step in range(steps) for index in taken(by_split[generator.choice(splits)], step)]
    assert sorted(used) == list(range(200))


@pytest.mark.parametrize("split", [(27, 18, 13, 6), (1, 1, 1, 61), (32, 0, 32, 0)])
def test_a_step_takes_the_same_samples_under_every_split(split: tuple[int, ...]) -> None:
    for step in (0, 2, 3, 7):
        assert taken(ranks(200, split), step) == taken(ranks(200, (64,)), step)


def test_a_rank_takes_as_many_samples_as_its_split_states() -> None:
    batches = ranks(640, (27, 18, 13, 6))
    for step in range(10):
        assert [len(each.indices(step)[0]) for each in batches] == [27, 18, 13, 6]
        assert {each.indices(step)[1] for each in batches} == {64}


# --- the short last batch ----------------------------------------------------------------------------------------------


def test_the_last_batch_is_short_keeps_its_proportions_and_has_its_true_size() -> None:
    """100 = 64 + 36; 36/64 of 32, 16, 8, 8 is 18, 9, 4.5, 4.5."""
    batches = ranks(100, (32, 16, 8, 8))
    assert batches[0].steps_per_epoch == 2
    assert [len(each.indices(1)[0]) for each in batches] == [18, 9, 5, 4]
    assert {each.indices(1)[1] for each in batches} == {36}


def test_a_short_batch_may_leave_a_rank_without_samples() -> None:
    batches = ranks(65, (40, 24))
    assert [each.take(1)[1:] for each in batches] == [(1, 1), (0, 1)]
    assert batches[1].take(1)[0] is None


def test_a_rank_without_samples_in_the_split_never_gets_any() -> None:
    idle = ranks(100, (64, 0))[1]
    assert [idle.take(step) for step in range(2)] == [(None, 0, 64), (None, 0, 36)]


def test_the_epoch_after_a_short_batch_starts_with_a_whole_one() -> None:
    assert [each.indices(2)[1] for each in ranks(100, (32, 32))] == [64, 64]


# --- the permutation ---------------------------------------------------------------------------------------------------


def test_all_ranks_share_one_permutation() -> None:
    """Slices of different ranks are disjoint: only possible if all slice the same order."""
    batches = ranks(128, (40, 24), seed=7)
    assert not set(batches[0].indices(0)[0].tolist()) & set(batches[1].indices(0)[0].tolist())
    assert taken(batches, 0) + taken(batches, 1) == taken(ranks(128, (128,), seed=7), 0)


def test_epochs_and_seeds_have_different_orders() -> None:
    whole = Batches(numbers(64), (64,), 0, seed=1)
    other = Batches(numbers(64), (64,), 0, seed=2)
    orders = [whole.indices(0)[0].tolist(), whole.indices(1)[0].tolist(), other.indices(0)[0].tolist()]
    assert len({tuple(order) for order in orders}) == 3
    assert all(order != sorted(order) for order in orders)


def test_a_step_is_the_same_whenever_it_is_taken() -> None:
    """Any rank can resume at any step: in any order, with a new object, independent of torch's generator."""
    straight = Batches(numbers(100), (32, 16), 1, seed=3)
    expected = [straight.indices(step)[0].tolist() for step in range(8)]
    torch.manual_seed(99)
    jumping = Batches(numbers(100), (32, 16), 1, seed=3)
    for step in (7, 0, 5, 2, 6, 1, 4, 3):
        torch.rand(1)
        assert jumping.indices(step)[0].tolist() == expected[step]


def test_shuffling_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Batches(numbers(64), (64,), 0, seed=1).take(0)
    assert torch.equal(torch.rand(3), expected)


# --- fetching ----------------------------------------------------------------------------------------------------------


def test_a_batch_of_tensors_holds_the_samples_of_its_indices() -> None:
    batches = ranks(64, (20, 12))[1]
    (first, second), size, total = batches.take(1)
    indices = batches.indices(1)[0]
    assert (size, total) == (12, 32)
    assert torch.equal(first, indices)
    assert torch.equal(second, 10 * indices)


def test_a_list_style_data_set_gives_the_same_samples_as_tensors() -> None:
    listed = Batches(ListStyle(50), (20, 12), 1, seed=4)
    tensors = Batches(numbers(50), (20, 12), 1, seed=4)
    (rows, labels), size, total = listed.take(1)
    assert (size, total) == tensors.take(1)[1:] == (7, 18)
    assert rows.shape == (7, 3)
    assert torch.equal(labels, tensors.indices(1)[0])
    assert torch.equal(rows[:, 0], labels.float())
