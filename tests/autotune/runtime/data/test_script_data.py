"""The data sets of a script: counted epochs, and sources that are reused in later epochs and after a checkpoint."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from autotune.runtime.data.script_data import TrainingData
from autotune.workloads.errors import SpecError

TRAIN, OTHER = TensorDataset(torch.arange(50)), TensorDataset(torch.arange(7))


def epoch_of(data: TrainingData, dataset: Any, epoch: int | None = None, **how: Any) -> list[list[int]]:
    return [dealt.batch[0].tolist() for dealt in data.batches(dataset, epoch=epoch, **how) if dealt.weight]


# --- epochs --------------------------------------------------------------------------------------------------------------


def test_epochs_count_themselves() -> None:
    """A loop without `epoch=` must not train on the same order in every epoch."""
    given, counted, kept = (TrainingData((3, 5), 0, seed=1) for _ in range(3))
    expected = [epoch_of(given, TRAIN, epoch) for epoch in range(3)]
    assert [epoch_of(counted, TRAIN) for _ in range(3)] == expected
    batches = kept.batches(TRAIN)
    assert [[dealt.batch[0].tolist() for dealt in batches] for _ in range(3)] == expected
    assert expected[0] != expected[1] != expected[2]


def test_an_epoch_that_was_left_early_counts() -> None:
    given, counted = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    for dealt in counted.batches(TRAIN):
        if dealt.step == 2:
            break
    assert epoch_of(counted, TRAIN) == epoch_of(given, TRAIN, 1)


def test_a_given_epoch_is_the_same_again_and_the_next_counts_on_from_it() -> None:
    given, counted = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    fifth = counted.batches(TRAIN, epoch=4)
    assert [dealt.step for dealt in fifth] == [dealt.step for dealt in fifth] == list(range(28, 35))
    assert epoch_of(counted, TRAIN) == epoch_of(given, TRAIN, 5)
    with pytest.raises(SpecError, match="epoch is -1: epochs are counted from 0"):
        epoch_of(counted, TRAIN, -1)


def test_steps_count_on_from_epoch_to_epoch_and_a_length_is_that_of_one() -> None:
    data = TrainingData((3, 5), 0, seed=1)
    batches = data.batches(TRAIN)
    assert len(batches) == 7
    assert [dealt.step for _ in range(2) for dealt in batches] == list(range(14))
    assert (data.next_step, data.epoch) == (14, 2)


def test_the_same_data_in_another_order_counts_its_own_epochs() -> None:
    """Evaluation on training data, between its epochs."""
    given, data = TrainingData((8,), 0, seed=1), TrainingData((8,), 0, seed=1)
    for epoch in range(2):
        assert epoch_of(data, TRAIN, num_workers=0) == epoch_of(given, TRAIN, epoch)
        assert list(chain(*epoch_of(data, TRAIN, shuffle=False))) == list(range(50))
    assert data.next_step == 14


def test_drop_last_leaves_out_the_short_batch() -> None:
    data = TrainingData((3, 5), 0, seed=1)
    batches = data.batches(TRAIN, drop_last=True)
    assert len(batches) == 6
    assert [(dealt.num_samples, dealt.step) for _ in range(2) for dealt in batches] == [(3, step) for step in range(12)]
    with pytest.raises(
        SpecError, match="an epoch of 7 samples has no batch of 8, and drop_last leaves out a short one"
    ):
        data.batches(OTHER, drop_last=True)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(SpecError, match="the data set is empty"):
        TrainingData((3, 5), 0, seed=1).batches([])


def test_each_call_has_settings_of_its_own() -> None:
    data, numbers = TrainingData((4,), 0, seed=1), [1, 2, 3, 4]

    def made(offset: int) -> list[int]:
        return [sum(each.batch) for each in data.batches(numbers, collate_fn=lambda samples: [*samples, offset])]

    assert (made(100), made(200)) == ([110], [210])
    assert data.epoch == 2


def test_weights_of_a_later_call_count() -> None:
    data, numbers = TrainingData((1, 1), 0, seed=1), [1, 2]
    for weights in ([1.0, 3.0], [1.0, 9.0]):
        (dealt,) = data.batches(numbers, loss_weights=weights)
        assert dealt.weight == weights[int(dealt.batch) - 1] / sum(weights)


# --- splits --------------------------------------------------------------------------------------------------------------


def test_a_new_split_holds_on_in_the_next_epoch() -> None:
    data = TrainingData((3, 5), 0, seed=1)
    sizes = []
    for epoch in range(2):
        for dealt in data.batches(TRAIN, epoch=epoch):
            sizes.append(dealt.num_samples)
            assert data.num_samples(dealt.step) == dealt.num_samples == len(dealt.batch[0])
            if data.next_step == 4:
                data.resplit(5, (6, 2))
    assert sizes == [3, 3, 3, 3, 3, 6, 2, 6, 6, 6, 6, 6, 6, 2]


def test_a_split_may_change_just_before_its_step_of_the_first_data_set() -> None:
    data, steps = TrainingData((3, 5), 0, seed=1), []

    def before(step: int) -> None:
        steps.append(step)
        if step == 2:
            data.resplit(2, (7, 1))

    data.before_batch = before
    assert [dealt.num_samples for dealt in data.batches(TRAIN)] == [3, 3, 7, 7, 7, 7, 2]
    epoch_of(data, OTHER)
    assert steps == list(range(7))


def test_a_split_without_data_is_refused() -> None:
    with pytest.raises(SpecError, match=r"call job\.batches\(\) first"):
        TrainingData((3, 5), 0, seed=1).resplit(3, (4, 4))


@pytest.mark.parametrize(("min_samples", "shown"), [(1, [0]), (2, [0, 1])])
def test_a_rank_without_samples_gets_some_of_weight_0(min_samples: int, shown: list[int]) -> None:
    data = TrainingData((0, 8), 0, seed=1, min_samples=min_samples)
    found = [(dealt.batch[0].tolist(), dealt.weight, dealt.num_samples) for dealt in data.batches(TRAIN)]
    assert found == [(shown, 0.0, 0)] * 7
    (alone,) = TrainingData((0, 8), 0, seed=1, min_samples=2).batches([5])
    assert alone.batch.tolist() == [5, 5]


def test_no_rank_has_a_single_sample_where_two_are_needed() -> None:
    """50 = 6·8 + 2: two samples are (1, 1) of (4, 4), which BatchNorm cannot train on."""
    for min_samples, expected in ((1, [1, 1]), (2, [2, 0])):
        ranks = [TrainingData((4, 4), rank, seed=1, min_samples=min_samples) for rank in range(2)]
        last = [list(each.batches(TRAIN))[-1] for each in ranks]
        assert [dealt.num_samples for dealt in last] == expected
        assert [dealt.weight for dealt in last] == [count / 2 for count in expected]
        assert [len(dealt.batch[0]) for dealt in last] == [min_samples, min_samples]


# --- checkpoints ---------------------------------------------------------------------------------------------------------


def test_an_interrupted_epoch_goes_on_where_it_was() -> None:
    straight, first, second = (TrainingData((3, 5), 0, seed=1) for _ in range(3))
    expected = [epoch_of(straight, TRAIN, epoch) for epoch in range(3)]
    epoch_of(first, TRAIN, 0)
    epoch_of(first, OTHER, 0)
    begun = iter(first.batches(TRAIN, epoch=1))
    taken = [next(begun).batch[0].tolist() for _ in range(4)]
    first.resplit(first.next_step + 1, (3, 5))
    second.load_state_dict(first.state_dict())
    assert (second.epoch, second.next_step) == (1, 11)
    assert taken + epoch_of(second, TRAIN, 1) == expected[1]
    assert epoch_of(second, OTHER, 0) == epoch_of(straight, OTHER, 0)  # it had been finished
    assert epoch_of(second, TRAIN, 2) == expected[2]
    assert epoch_of(second, TRAIN, 1) == expected[1]  # asked for again, it is whole
    assert first.state_dict()["batches"][0]["next_step"] == 11


def test_epochs_that_count_themselves_go_on_from_a_checkpoint() -> None:
    straight, first, second = (TrainingData((3, 5), 0, seed=1) for _ in range(3))
    expected = [epoch_of(straight, TRAIN) for _ in range(3)]
    epoch_of(first, TRAIN)
    taken = [dealt.batch[0].tolist() for dealt in islice(first.batches(TRAIN), 4)]
    batches = second.batches(TRAIN)
    second.load_state_dict(first.state_dict())
    assert len(batches) == 7
    assert taken + [dealt.batch[0].tolist() for dealt in batches] == expected[1]
    assert [dealt.batch[0].tolist() for dealt in batches] == expected[2]


def test_a_checkpoint_made_before_a_data_set_was_used_again_keeps_its_place() -> None:
    first, second = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    next(iter(first.batches(TRAIN, epoch=2)))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.epoch == 2


def test_a_checkpoint_from_before_orders_could_be_chosen_is_loaded() -> None:
    old = {"next_step": 9, "splits": [[9, [3, 5]]], "seed": 1, "num_samples": 50, "global_batch": 8}
    straight, data = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    data.load_state_dict({"epoch": 1, "batches": [old]})
    assert epoch_of(data, TRAIN) == epoch_of(straight, TRAIN, 1)[2:]


@pytest.mark.parametrize(("how", "name"), [({"shuffle": False}, "order"), ({"drop_last": True}, "drop_last")])
def test_a_checkpoint_of_another_order_is_refused(how: dict[str, bool], name: str) -> None:
    first, second = TrainingData((3, 5), 0, seed=1), TrainingData((3, 5), 0, seed=1)
    epoch_of(first, TRAIN)
    second.load_state_dict(first.state_dict())
    with pytest.raises(SpecError, match=f"the checkpoint's {name} is"):
        second.batches(TRAIN, **how)  # type: ignore[arg-type]
