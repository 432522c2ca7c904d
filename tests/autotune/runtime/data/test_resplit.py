"""Splits that change during training: every sample once per epoch, also with read-ahead; and resumed jobs."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from autotune.runtime.data.batches import READ_WHEN_NEEDED, Batches
from autotune.runtime.data.dealing import deal
from autotune.runtime.data.prefetch import Loading
from autotune.runtime.data.sample_order import SampleOrder
from autotune.workloads.errors import SpecError

WORKERS = Loading(num_workers=1, timeout_s=60)


class Numbers(Dataset[int]):
    """Sample k is k; reading the sample that is given fails."""

    def __init__(self, num_samples: int, broken: int = -1) -> None:
        self._num_samples, self._broken = num_samples, broken

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        if index == self._broken:
            raise OSError(f"sample {index} cannot be read")
        return index


def random_split(generator: random.Random, num_ranks: int, total: int) -> tuple[int, ...]:
    cuts = sorted(generator.randint(0, total) for _ in range(num_ranks - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def run_schedule(generator: random.Random, loading: Loading = READ_WHEN_NEEDED, most_samples: int = 120) -> None:
    """Two epochs in which the split changes at random, now or some steps ahead, checked sample by sample."""
    num_ranks, total = generator.randint(1, 4), generator.randint(1, 24)
    num_samples = generator.randint(1, most_samples)
    first, seed = random_split(generator, num_ranks, total), generator.randint(0, 99)
    work = [generator.randint(1, 50) for _ in range(num_samples)] if generator.random() < 0.3 else None
    ranks = [
        Batches(Numbers(num_samples), first, rank, seed=seed, work=work, loading=loading) for rank in range(num_ranks)
    ]
    steps = ranks[0].steps_per_epoch
    try:
        for epoch in range(2):
            used: list[int] = []
            for step in range(epoch * steps, (epoch + 1) * steps):
                while generator.random() < 0.4:
                    change = step + generator.choice([0, 0, 1, 3]), random_split(generator, num_ranks, total)
                    for each in ranks:
                        each.resplit(*change)
                used += [int(sample) for sample in taken_by_all(ranks, step)]
            assert sorted(used) == list(range(num_samples))
    finally:
        for each in ranks:
            each.close()


def taken_by_all(ranks: list[Batches], step: int) -> list[int]:
    found, weights = [], []
    for each in ranks:
        batch, size, total = each.take(step)
        assert (batch is None) == (size == 0)
        found += [] if batch is None else batch.tolist()
        assert found[len(found) - size :] == each.indices(step)[0].tolist()
        weights.append(each.part(step).weight)
    assert len(found) == total
    assert sum(weights) == pytest.approx(1.0, abs=1e-12)
    return found


def test_every_sample_is_used_once_per_epoch_in_a_thousand_schedules_of_splits() -> None:
    for number in range(1000):
        run_schedule(random.Random(number), most_samples=60)


def test_every_sample_is_used_once_where_workers_read_ahead() -> None:
    for number in range(4):
        run_schedule(random.Random(number), WORKERS)


@pytest.mark.slow
def test_every_sample_is_used_once_where_workers_read_far_ahead() -> None:
    for number in range(100, 140):
        run_schedule(random.Random(number), Loading(num_workers=2, prefetch_factor=3, timeout_s=60))


# --- the splits ---------------------------------------------------------------------------------------------------------


def test_a_split_holds_from_its_step_until_the_next() -> None:
    order = SampleOrder(100, (10, 0), 0, seed=0)
    assert {len(order.part(step).indices) for step in range(9)} == {10}  # a loader reads ahead
    order.resplit(3, (4, 6))
    order.resplit(7, (0, 10))
    order.resplit(5, (1, 9))
    order.resplit(7, (2, 8))
    assert [order.split(step)[0] for step in range(9)] == [10, 10, 10, 4, 4, 1, 1, 2, 2]
    assert [len(order.part(step).indices) for step in range(9)] == [10, 10, 10, 4, 4, 1, 1, 2, 2]


@pytest.mark.parametrize("split", [(5, 4), (5, 5, 0), (11, -1)])
def test_a_split_of_another_batch_is_refused(split: tuple[int, ...]) -> None:
    batches = Batches(Numbers(100), (4, 6), 0, seed=0)
    with pytest.raises(SpecError, match=r"must give 2 ranks counts from 0 that sum to 10"):
        batches.resplit(1, split)


def test_a_split_from_a_step_that_was_taken_is_refused() -> None:
    batches = Batches(Numbers(100), (4, 6), 0, seed=0)
    batches.take(2)
    with pytest.raises(SpecError, match="from step 2 but step 2 has been taken: agree on a step from 3 on"):
        batches.resplit(2, (5, 5))
    batches.resplit(3, (5, 5))


# --- workers ------------------------------------------------------------------------------------------------------------


def test_a_batch_that_was_read_ahead_and_still_matches_is_not_read_again() -> None:
    """Only rank 1's slice changes: only its loader requests batches again, from the changed step on."""
    ranks = [Batches(Numbers(100), (4, 3, 3), rank, seed=0, loading=WORKERS) for rank in range(3)]
    for each in ranks:
        each.take(0)
    asked = [list(each._ahead._requested) for each in ranks if each._ahead is not None]
    for each in ranks:
        each.resplit(2, (4, 5, 1))
    assert [each._ahead._next for each in ranks if each._ahead is not None] == [asked[0][-1].step + 1, 2, 2]
    assert [len(taken_by_all(ranks, step)) for step in (1, 2, 3)] == [10, 10, 10]
    for each in ranks:
        each.close()


def test_steps_may_be_taken_in_any_order_with_workers_too() -> None:
    plain, ahead = (Batches(Numbers(50), (4, 6), 1, seed=3, loading=how) for how in (Loading(), WORKERS))
    for step in (3, 4, 0, 7, 1, 2):
        assert ahead.take(step)[0].tolist() == plain.take(step)[0].tolist()
    ahead.close()


def test_a_sample_that_cannot_be_read_fails_the_step_and_leaves_no_worker() -> None:
    batches = Batches(Numbers(40, broken=7), (10,), 0, seed=0, loading=WORKERS)
    at = next(step for step in range(4) if 7 in batches.indices(step)[0])
    with pytest.raises(OSError, match="sample 7 cannot be read"):
        batches.take(at)
    ahead: Any = batches._ahead
    assert ahead._iterator is None
    assert batches.take(at + 1)[0].tolist() == batches.indices(at + 1)[0].tolist()  # and workers can start again
    workers = ahead._iterator._workers
    batches.close()
    batches.close()
    assert not any(worker.is_alive() for worker in workers)


def test_a_data_set_need_not_support_an_empty_list_of_indices() -> None:
    class Stacked(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [indices[0], *indices[1:]]

    batches = Batches(Stacked(20), (10, 0), 1, seed=0, loading=WORKERS)
    try:
        assert [batches.take(step) for step in range(2)] == [(None, 0, 10)] * 2
        batches.resplit(2, (5, 5))
        assert batches.take(2)[0].tolist() == batches.indices(2)[0].tolist()
    finally:
        batches.close()


def test_workers_leave_torchs_own_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches = Batches(Numbers(64), (8,), 0, seed=1, loading=WORKERS)
    batches.take(0)
    batches.close()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("wrong", [{"num_workers": -1}, {"prefetch_factor": 0}])
def test_impossible_workers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="must be at least 0 and 1"):
        Loading(**wrong)  # type: ignore[arg-type]


# --- work ---------------------------------------------------------------------------------------------------------------


def loads(work: Tensor, owners: Tensor, num_ranks: int) -> list[float]:
    return [float(work[owners == rank].sum()) for rank in range(num_ranks)]


def test_work_is_dealt_in_proportion_to_the_split() -> None:
    """Lengths as texts have them, from 1 to some hundred: 64 of them over shares 27, 18, 13, 6."""
    shares = (27, 18, 13, 6)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        work = (torch.randn(64, generator=generator) * 0.8 + 4).exp().clamp(1, 500).round().double()
        done = [load / share for load, share in zip(loads(work, deal(work, shares), 4), shares, strict=True)]
        assert max(done) <= 1.05 * float(work.sum()) / 64


def test_dealing_is_near_the_best_there_is() -> None:
    """Against all assignments of seven samples: the rule's bound on uniform machines is 1.58, in practice far less."""
    generator = random.Random(1)
    for _ in range(30):
        work = torch.tensor([float(generator.randint(1, 20)) for _ in range(7)])
        shares = (generator.randint(1, 5), generator.randint(1, 5))

        def slowest(owners: Tensor, work: Tensor = work, shares: tuple[int, int] = shares) -> float:
            return max(load / share for load, share in zip(loads(work, owners, 2), shares, strict=True))

        best = min(slowest(torch.tensor(owners)) for owners in product((0, 1), repeat=7))
        assert slowest(deal(work, shares)) <= 1.25 * best


def test_a_rank_without_a_share_gets_no_work() -> None:
    assert set(deal(torch.rand(50).double() + 0.1, (3, 0, 1)).tolist()) == {0, 2}


def test_equal_work_is_dealt_as_the_split_states() -> None:
    owners = deal(torch.ones(64, dtype=torch.float64), (27, 18, 13, 6))
    assert torch.bincount(owners).tolist() == [27, 18, 13, 6]


def test_tokens_can_be_what_the_loss_counts() -> None:
    """A mean over tokens of the whole batch is the weighted sum of the ranks' means, exactly."""
    tokens = torch.arange(1, 41)
    losses = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(tokens, losses)
    ranks = [Batches(data, (8, 5, 3), rank, seed=2, work=tokens, loss_weights=tokens) for rank in range(3)]
    for step in range(3):
        whole = torch.cat([each.indices(step)[0] for each in ranks])
        mean = (tokens[whole] * losses[whole]).sum() / tokens[whole].sum()
        shares = []
        for each in ranks:
            (length, loss), _, _ = each.take(step)
            shares.append(each.part(step).weight * float((length * loss).sum() / length.sum()))
            assert each.part(step).work == float(length.sum())
        assert sum(shares) == pytest.approx(float(mean), rel=1e-14)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ([1.0, 2.0], r"work of shape \[2\] for 3 samples"),
        ([1.0, 0.0, 2.0], "work hold 0.0: every sample's must be above"),
    ],
)
def test_work_must_be_a_positive_number_for_each_sample(work: list[float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Batches(Numbers(3), (1, 1), 0, seed=0, work=work)


# --- going on -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loading", [Loading(), WORKERS])
def test_a_job_goes_on_in_the_middle_of_an_epoch(loading: Loading) -> None:
    """With the splits that were agreed on, the coming ones included: the steps that follow are the same."""
    before, after = (Batches(Numbers(100), (4, 6), 0, seed=3, loading=loading) for _ in range(2))
    before.resplit(2, (7, 3))
    before.resplit(5, (1, 9))
    for step in range(4):
        before.take(step)
    state = before.state_dict()
    assert state["next_step"] == 4
    assert state["splits"] == [[4, [7, 3]], [5, [1, 9]]]
    after.take(0)
    after.load_state_dict(state)
    for step in range(after.next_step, 12):
        assert after.take(step)[0].tolist() == before.take(step)[0].tolist()
    before.close()
    after.close()


def test_a_job_goes_on_with_another_number_of_ranks() -> None:
    state = {"next_step": 3, "splits": [[3, [7, 3]]], "seed": 0, "num_samples": 50, "global_batch": 10}
    ranks = [Batches(Numbers(50), (5, 3, 2), rank, seed=0) for rank in range(3)]
    for each in ranks:
        each.load_state_dict(state)
    first = [Batches(Numbers(50), (7, 3), rank, seed=0) for rank in range(2)]
    used = [s for step in range(3) for s in taken_by_all(first, step)]
    used += [s for step in (3, 4) for s in taken_by_all(ranks, step)]
    assert sorted(used) == list(range(50))


@pytest.mark.parametrize("name", ["seed", "num_samples", "global_batch"])
def test_a_checkpoint_of_other_data_is_refused(name: str) -> None:
    batches = Batches(Numbers(50), (7, 3), 0, seed=0)
    with pytest.raises(SpecError, match=f"the checkpoint's {name} is 77"):
        batches.load_state_dict(batches.state_dict() | {name: 77})
