"""Iterable-style data sets: every rank reads the stream and keeps its slice of each global batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.runtime.data.script_data import TrainingData
from autotune.workloads.errors import SpecError


class Stream(IterableDataset[int]):
    """Numbers from 100·epoch on."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples, self.epoch = num_samples, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.epoch, 100 * self.epoch + self.num_samples))


class Plain:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Sized(Stream):
    def __len__(self) -> int:
        return self.num_samples


def found(data: TrainingData, given: Any, **how: Any) -> list[list[int]]:
    return [dealt.batch.tolist() for dealt in data.batches(given, **how)]


def test_ranks_keep_their_slice_of_each_batch() -> None:
    ranks = [list(TrainingData((3, 1), rank, seed=0).batches(Stream(10))) for rank in range(2)]
    assert [[dealt.batch.tolist() for dealt in each] for each in ranks] == [
        [[0, 1, 2], [4, 5, 6], [8, 9]],
        [[3], [7], [8]],  # the last has weight 0
    ]
    assert [[dealt.weight for dealt in each] for each in ranks] == [[0.75, 0.75, 1.0], [0.25, 0.25, 0.0]]
    assert [[dealt.step for dealt in each] for each in ranks] == [[0, 1, 2]] * 2


def test_epochs_are_counted_and_set_on_the_stream() -> None:
    data, stream = TrainingData((4,), 0, seed=0), Stream(4)
    batches = data.batches(stream)
    assert [dealt.batch[0].item() for _ in range(3) for dealt in batches] == [0, 100, 200]
    assert found(data, stream, epoch=7) == [[700, 701, 702, 703]]
    assert (data.epoch, data.next_step) == (8, 4)


def test_an_epoch_left_early_counts() -> None:
    data, stream = TrainingData((2,), 0, seed=0), Stream(6)
    next(iter(data.batches(stream)))
    assert [(dealt.step, dealt.batch[0].item()) for dealt in data.batches(stream)] == [(1, 100), (2, 102), (3, 104)]


def test_a_rank_without_samples_is_shown_some() -> None:
    for min_samples, expected in ((1, [4]), (2, [4, 4])):
        ranks = [TrainingData((2, 2), rank, seed=0, min_samples=min_samples) for rank in range(2)]
        last = [list(each.batches(Plain()))[-1] for each in ranks]
        assert [(dealt.weight, dealt.num_samples) for dealt in last] == [(1.0, 1), (0.0, 0)]
        assert last[1].batch.tolist() == expected


def test_drop_last() -> None:
    data = TrainingData((4,), 0, seed=0)
    assert found(data, Plain(), drop_last=True) == [[0, 1, 2, 3]]
    with pytest.raises(SpecError, match="Stream gave fewer samples than a batch has: drop_last leaves out"):
        found(data, Stream(3), drop_last=True)
    with pytest.raises(SpecError, match="training needs one sample at least"):
        found(data, Stream(0))


def test_a_split_may_change_before_any_step() -> None:
    data, sizes = TrainingData((3, 1), 0, seed=0), []

    def before(step: int) -> None:
        if step == 1:
            data.resplit(1, (1, 3))
        sizes.append(data.num_samples(step))

    data.before_batch = before
    assert found(data, Stream(9)) == [[0, 1, 2], [4], [8]]
    assert sizes == [3, 1, 0]
    with pytest.raises(SpecError, match="step 2 has been taken"):
        data.resplit(2, (2, 2))


def test_a_length_is_known_if_the_data_set_has_one() -> None:
    data = TrainingData((4,), 0, seed=0)
    assert len(data.batches(Sized(10))) == 3
    assert len(data.batches(Sized(10), drop_last=True)) == 2
    with pytest.raises(TypeError, match=r"Stream is iterable-style and has no len\(\)"):
        len(data.batches(Stream(10)))


def test_the_parts_of_a_loader_of_a_stream_are_used() -> None:
    data, loader = TrainingData((4,), 0, seed=0), DataLoader(Stream(10), batch_size=4, drop_last=True)
    assert found(data, loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found(data, loader)[0] == [100, 101, 102, 103]
    with pytest.raises(SpecError, match="batch_size is 5 but the global batch"):
        data.batches(DataLoader(Stream(10), batch_size=5))


def test_samples_are_collated() -> None:
    data, plain = TrainingData((8,), 0, seed=0), Plain()
    for offset in (100, 200):
        (dealt,) = data.batches(plain, collate_fn=lambda samples, offset=offset: [*samples, offset])
        assert dealt.batch == [0, 1, 2, 3, 4, offset]
    assert data.epoch == 2


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"shuffle": True}, "`shuffle` here: Plain is iterable-style, its order is its own; give a data set with len"),
        ({"sampler": [1]}, "`sampler` here: Plain is iterable-style, samples cannot be picked"),
        ({"work": [1.0] * 5}, "`work` here"),
        ({"loss_weights": torch.ones(5)}, "`loss_weights` here"),
        ({"num_workers": 1}, "`num_workers` here: .*it must be 0"),
    ],
)
def test_what_needs_indices_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TrainingData((4,), 0, seed=0).batches(Plain(), **how)
    TrainingData((4,), 0, seed=0).batches(Plain(), shuffle=False, num_workers=0)


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_checkpoint_goes_on_where_it_was_made(num_steps: int, *, drop_last: bool) -> None:
    """Epochs of 3 steps, or of 2 without the short one; also one that is made in the last step of an epoch."""
    first, second = TrainingData((4,), 0, seed=0), TrainingData((2, 2), 0, seed=0)
    twin, per_epoch = TrainingData((2, 2), 1, seed=0), 3 - drop_last
    batches = first.batches(Stream(10), drop_last=drop_last)
    steps = (dealt for _ in range(5) for dealt in batches)
    list(islice(steps, num_steps))
    state = first.state_dict()
    expected = [dealt.batch.tolist() for dealt in islice(steps, per_epoch - num_steps % per_epoch)]
    for each in (second, twin):
        each.load_state_dict(state)
        assert (each.epoch, each.next_step) == (num_steps // per_epoch, num_steps)
    parts = [found(each, Stream(10), drop_last=drop_last) for each in (second, twin)]
    assert [one + other for one, other in zip(*parts, strict=True)] == expected


def test_a_checkpoint_keeps_the_splits_that_were_agreed_on() -> None:
    first, second = TrainingData((3, 1), 0, seed=0), TrainingData((3, 1), 0, seed=0)
    next(iter(first.batches(Stream(16))))
    first.resplit(1, (1, 3))
    first.resplit(3, (2, 2))
    second.load_state_dict(first.state_dict())
    assert found(second, Stream(16)) == [[4], [8], [12, 13]]


def test_a_checkpoint_of_other_data_is_refused() -> None:
    first, second, third = (TrainingData((4,), 0, seed=0) for _ in range(3))
    list(islice(first.batches(Stream(20)), 3))
    second.load_state_dict(first.state_dict())
    with pytest.raises(SpecError, match="ends within the 3 batches of this epoch that the checkpoint had used"):
        found(second, Stream(12))
    third.load_state_dict(first.state_dict())
    with pytest.raises(SpecError, match="the checkpoint's order is stream but the job's is shuffled"):
        third.batches([1, 2, 3])
