"""Orders of a sampler: iterated in every epoch, rank 0's on all ranks, kept in checkpoints."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
from torch.utils.data import WeightedRandomSampler

from autotune.runtime.data.script_data import TrainingData
from autotune.workloads.errors import SpecError

NUMBERS = list(range(20))


class Growing:
    """Epoch e has 6 + 3e samples, drawn at each iteration."""

    def __init__(self, seed: int = 0) -> None:
        self._random, self.epochs = random.Random(seed), [0]

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(self._random.sample(NUMBERS, len(self)))

    def __len__(self) -> int:
        return 6 + 3 * self.epochs[-1]


class Holder:
    """Values that rank 0 has shared, for the ranks that run after it in this process."""

    def __init__(self) -> None:
        self.shared: list[Any] = []

    def of(self, rank: int) -> Any:
        calls = count()

        def share(value: Any) -> Any:
            if rank == 0:
                self.shared.append(value)
            return self.shared[next(calls)]

        return share


def test_a_sampler_gives_the_order_of_each_epoch_anew() -> None:
    data, sampler, twin = TrainingData((4,), 0, seed=0), Growing(5), random.Random(5)
    batches = data.batches(NUMBERS, sampler=sampler)
    for epoch in range(4):
        found = list(batches)
        assert [int(s) for dealt in found for s in dealt.batch] == twin.sample(NUMBERS, 6 + 3 * epoch)
        assert len(found) == len(batches) == -(-(6 + 3 * epoch) // 4)
    assert sampler.epochs == [0, 0, 1, 2, 3]
    assert (data.epoch, data.next_step) == (4, 2 + 3 + 3 + 4)


def test_rank_0s_order_holds_on_all_ranks() -> None:
    holder = Holder()
    ranks = [TrainingData((3, 1), rank, seed=0, share=holder.of(rank)) for rank in range(2)]
    for _ in range(3):
        parts = [list(each.batches(NUMBERS, sampler=Growing(rank))) for rank, each in enumerate(ranks)]
        found = [int(s) for step in zip(*parts, strict=True) for dealt in step if dealt.weight for s in dealt.batch]
        assert found == holder.shared[-1]


def test_a_sampler_made_anew_in_every_epoch_goes_on_counting() -> None:
    data = TrainingData((4,), 0, seed=0)
    for epoch in range(3):
        sampler = Growing(epoch)
        steps = [dealt.step for dealt in data.batches(NUMBERS, sampler=sampler)]
        assert sampler.epochs[-1] == epoch
        assert steps[0] == [0, 2, 5][epoch]


def test_samples_may_come_twice_and_have_work_and_weights() -> None:
    weighted = WeightedRandomSampler([1.0] + [0.001] * 19, 30)
    ranks = [TrainingData((6, 2), rank, seed=0, share=share) for rank, share in enumerate(map(Holder().of, range(2)))]
    how: dict[str, Any] = {"work": [1.0 + n for n in NUMBERS], "loss_weights": [2.0 + n for n in NUMBERS]}
    for one, other in zip(*(list(each.batches(NUMBERS, sampler=weighted, **how)) for each in ranks), strict=True):
        total = [n for dealt in (one, other) if dealt.weight for n in dealt.batch.tolist()]
        assert len(total) in {8, 6}
        assert one.weight == pytest.approx(sum(2 + n for n in one.batch.tolist()) / sum(2 + n for n in total))


def test_two_iterations_at_a_time_have_an_order_each() -> None:
    data, sampler = TrainingData((4,), 0, seed=0), [5, 4, 3, 2, 1, 0]
    batches = data.batches(NUMBERS, sampler=sampler)
    for one, other in zip(batches, batches, strict=True):
        assert one.batch.tolist() == other.batch.tolist()
        assert one.step != other.step


def test_workers_read_a_samplers_order() -> None:
    plain, ahead = TrainingData((2, 2), 0, seed=0), TrainingData((2, 2), 0, seed=0)
    try:
        one = plain.batches(NUMBERS, sampler=Growing(5))
        other = ahead.batches(NUMBERS, sampler=Growing(5), num_workers=1, timeout=60)
        for _ in range(3):
            assert [d.batch.tolist() for d in one] == [d.batch.tolist() for d in other]
    finally:
        ahead.close()


def test_a_sampler_without_a_length_is_as_long_as_it_was() -> None:
    class Odd:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 3, 5, 7, 9])

    batches = TrainingData((4,), 0, seed=0).batches(NUMBERS, sampler=Odd())
    with pytest.raises(TypeError, match=r"the sampler Odd has no len\(\)"):
        len(batches)
    assert len(list(batches)) == len(batches) == 2


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ([0, 20], "gave index 20 but the data set has 20 samples: indices are from 0 to 19"),
        ([0, -1], "gave index -1"),
        ([[0, 1], [2, 3]], r"gave \[0, 1\], a list: .*a batch sampler cannot be used"),
        (["a"], "gave 'a', a str"),
        ([], "the sampler list gave 0 indices for epoch 0"),
    ],
)
def test_indices_must_be_those_of_samples(sampler: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        list(TrainingData((4,), 0, seed=0).batches(NUMBERS, sampler=sampler))


def test_a_sampler_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runtime.data.order_sources._MOST_INDICES", 100)
    with pytest.raises(SpecError, match="gave 2000 indices for epoch 0: it must give one at least, and end"):
        list(TrainingData((4,), 0, seed=0).batches(NUMBERS, sampler=iter(lambda: 1, 2)))


def test_a_sampler_is_iterable_and_alone() -> None:
    data = TrainingData((4,), 0, seed=0)
    with pytest.raises(SpecError, match="the sampler is a int: it must be an iterable"):
        data.batches(NUMBERS, sampler=3)
    with pytest.raises(SpecError, match="both shuffle=True and a sampler"):
        data.batches(NUMBERS, sampler=[1], shuffle=True)
    assert len(data.batches(NUMBERS, sampler=[1], shuffle=False)) == 1
    with pytest.raises(SpecError, match="an epoch of 3 samples has no batch of 4"):
        list(data.batches(NUMBERS, sampler=[1, 2, 3], drop_last=True))
    assert len(list(data.batches(NUMBERS, sampler=[1, 2, 3, 4, 5], drop_last=True))) == 1


@pytest.mark.parametrize("num_steps", range(8))
def test_a_checkpoint_keeps_the_order_of_its_epoch(num_steps: int) -> None:
    """Epochs of 2, 3 and 3 steps. After a resumption the sampler would draw another order."""
    first = TrainingData((4,), 0, seed=0)
    batches = first.batches(NUMBERS, sampler=Growing(5))
    steps = (dealt for _ in range(3) for dealt in batches)
    taken = list(islice(steps, num_steps))
    state = first.state_dict()
    rest = [[int(s) for s in dealt.batch] for dealt in steps]
    epoch, left = (0, 2 - num_steps) if num_steps < 2 else (1, 5 - num_steps) if num_steps < 5 else (2, 8 - num_steps)
    holder = Holder()
    ranks = [TrainingData((1, 0, 3), rank, seed=0, share=holder.of(rank)) for rank in range(3)]
    if num_steps == 8:
        epoch, left = 3, 4
    for each in ranks:
        each.load_state_dict(state)
        assert (each.epoch, each.next_step) == (epoch, len(taken))
    parts = [list(each.batches(NUMBERS, sampler=Growing(77))) for each in ranks]
    found = [[int(s) for dealt in step if dealt.weight for s in dealt.batch] for step in zip(*parts, strict=True)]
    assert len(found) == left
    in_mid_epoch = num_steps not in {0, 2, 5, 8}
    assert ("epoch_order" in state["batches"][0] if num_steps else False) == in_mid_epoch
    if in_mid_epoch:
        assert found == rest[:left]
    assert [dealt.step for dealt in parts[0]] == list(range(num_steps, num_steps + left))
