"""A script's data sets: batches are found again from epoch to epoch, and after a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from autotune.runtime.training_data import TrainingData


def epoch_of(data: TrainingData, dataset: Any, epoch: int) -> list[list[int]]:
    return [batch[0].tolist() for batch, weight in data.epoch_of(dataset, epoch) if weight]


TRAIN, OTHER = TensorDataset(torch.arange(50)), TensorDataset(torch.arange(7))


def test_an_interrupted_epoch_goes_on_where_it_was() -> None:
    straight, first, second = (TrainingData((3, 5), 0, seed=1) for _ in range(3))
    expected = [epoch_of(straight, TRAIN, epoch) for epoch in range(3)]
    epoch_of(first, TRAIN, 0)
    epoch_of(first, OTHER, 0)
    begun = first.epoch_of(TRAIN, 1)
    taken = [next(begun)[0][0].tolist() for _ in range(4)]
    first.resplit(first.next_step + 1, (3, 5))
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1
    assert taken + epoch_of(second, TRAIN, 1) == expected[1]
    assert epoch_of(second, OTHER, 0) == epoch_of(straight, OTHER, 0)  # it had been finished
    assert epoch_of(second, TRAIN, 2) == expected[2]
    assert epoch_of(second, TRAIN, 1) == expected[1]  # asked for again, it is whole
    assert first.state_dict()["batches"][0]["next_step"] == 11


def test_a_new_split_holds_on_in_the_next_epoch() -> None:
    data = TrainingData((3, 5), 0, seed=1)
    sizes = []
    for epoch in range(2):
        for batch, _ in data.epoch_of(TRAIN, epoch):
            sizes.append(len(batch[0]))
            if data.next_step == 4:
                data.resplit(5, (6, 2))
    assert sizes == [3, 3, 3, 3, 3, 6, 2, 6, 6, 6, 6, 6, 6, 2]


def test_a_rank_without_a_sample_is_given_one_that_does_not_count() -> None:
    found = [(batch[0].tolist(), weight) for batch, weight in TrainingData((0, 8), 0, seed=1).epoch_of(TRAIN, 0)]
    assert found == [([0], 0.0)] * 7


def test_a_checkpoint_made_before_a_data_set_was_used_again_keeps_its_place() -> None:
    first, second = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    next(first.epoch_of(TRAIN, 2))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.epoch == 2
