"""All ranks together read what one process reads, for all splits, data sets and orders; also after a checkpoint.

Ranks are several `TrainingData` in one process, which run an epoch one after another: values that rank 0 shares are kept for
the later ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SubsetRandomSampler

from autotune.runtime.data.script_data import Dealt, TrainingData


class Stream:
    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._num_samples))


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


@dataclass(frozen=True)
class Case:
    """A job: its data set, its arguments of `batches`, and the splits of its steps."""

    num_samples: int
    kind: str
    how: dict[str, Any]
    splits: list[tuple[int, ...]]
    """By step; the first is the plan's."""
    min_samples: int

    @property
    def global_batch(self) -> int:
        return sum(self.splits[0])

    def source(self) -> Any:
        numbers = list(range(self.num_samples))
        if self.kind == "stream":
            return Stream(self.num_samples)
        if self.kind == "loader":
            return DataLoader(numbers, batch_size=self.global_batch, shuffle=True)  # type: ignore[arg-type]
        return numbers

    def arguments(self) -> dict[str, Any]:
        if self.kind == "sampler":
            return self.how | {"sampler": SubsetRandomSampler(range(0, self.num_samples, 2))}
        return self.how

    def expected(self) -> list[int]:
        return list(range(0, self.num_samples, 2 if self.kind == "sampler" else 1))


def splits_of(num_ranks: int, total: int) -> st.SearchStrategy[tuple[int, ...]]:
    cuts = st.lists(st.integers(0, total), min_size=num_ranks - 1, max_size=num_ranks - 1).map(sorted)
    return cuts.map(lambda at: tuple(b - a for a, b in zip([0, *at], [*at, total], strict=True)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_ranks, total, num_samples = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(1, 40))
    kind = draw(st.sampled_from(["shuffled", "sequential", "sampler", "stream", "loader"]))
    how: dict[str, Any] = {"shuffle": False} if kind == "sequential" else {}
    if (num_samples + 1) // 2 >= total:
        how["drop_last"] = draw(st.booleans())
    if kind != "stream":
        numbers = st.lists(st.floats(0.01, 100), min_size=num_samples, max_size=num_samples)
        how |= {name: draw(numbers) for name in ("work", "loss_weights") if draw(st.booleans())}
    splits = draw(st.lists(splits_of(num_ranks, total), min_size=1, max_size=8))
    return Case(num_samples, kind, how, splits, draw(st.integers(1, 3)))


def run(ranks: list[TrainingData], case: Case, source: Any, most: int | None = None) -> list[list[Dealt]]:
    """The ranks' batches of an epoch, step by step; with the case's splits where there are as many ranks."""
    columns = []
    for each in ranks:
        column = []
        for dealt in each.batches(source, **case.arguments()):
            column.append(dealt)
            if len(column) == most:
                break
            if len(ranks) == len(case.splits[0]):
                each.resplit(dealt.step + 1, case.splits[dealt.step % len(case.splits)])
        columns.append(column)
    return [list(step) for step in zip(*columns, strict=True)]


def job(samples: tuple[int, ...], case: Case, holder: Holder) -> list[TrainingData]:
    return [
        TrainingData(samples, rank, seed=5, min_samples=case.min_samples, share=holder.of(rank))
        for rank in range(len(samples))
    ]


def checked(step: list[Dealt], case: Case) -> list[int]:
    """The samples of a step, in the ranks' order."""
    assert abs(math.fsum(dealt.weight for dealt in step) - 1) <= 1e-15
    assert len({dealt.step for dealt in step}) == 1
    for dealt in step:
        counted = len(dealt.batch) if dealt.weight else 0
        assert dealt.num_samples == counted
        assert counted or len(dealt.batch) == case.min_samples
    total = sum(dealt.num_samples for dealt in step)
    if total < case.global_batch:
        assert all(dealt.num_samples == 0 or dealt.num_samples >= min(case.min_samples, total) for dealt in step)
    return [int(sample) for dealt in step if dealt.weight for sample in dealt.batch]


@settings(max_examples=150, deadline=None)
@given(cases())
def test_all_ranks_together_see_what_one_process_sees(case: Case) -> None:
    source = case.source()
    holder = Holder()
    ranks = job(case.splits[0], case, holder)
    (alone,) = job((case.global_batch,), case, Holder())
    for epoch in range(2):
        steps = [checked(step, case) for step in run(ranks, case, source)]
        if case.kind == "sampler":  # it draws again for the reference process
            order = holder.shared[epoch]
            whole = [order[n : n + case.global_batch] for n in range(0, len(order), case.global_batch)]
        else:
            whole = [dealt.batch.tolist() for dealt in alone.batches(source, **case.arguments())]
        assert [sorted(step) for step in steps] == [sorted(chunk) for chunk in whole[: len(steps)]]
        if "work" not in case.how:
            assert steps == whole[: len(steps)]
        expected, used = case.expected(), list(chain(*steps))
        assert len(set(used)) == len(used)
        assert set(used) <= set(expected)
        left_out = len(expected) % case.global_batch if case.how.get("drop_last") else 0
        assert len(used) == len(expected) - left_out


@settings(max_examples=150, deadline=None)
@given(cases(), st.data())
def test_a_job_goes_on_with_other_ranks_where_it_was(case: Case, data: st.DataObject) -> None:
    source = case.source()
    first = job(case.splits[0], case, Holder())
    run(first, case, source)
    begun = [checked(step, case) for step in run(first, case, source, most=data.draw(st.integers(1, 4)))]
    num_ranks = data.draw(st.integers(1, 4))
    second = job(data.draw(splits_of(num_ranks, case.global_batch)), case, Holder())
    for each in second:
        each.load_state_dict(first[0].state_dict())
    rest = [checked(step, case) for step in run(second, case, source)]
    expected = case.expected()
    left_out = len(expected) % case.global_batch if case.how.get("drop_last") else 0
    num_steps = -(-(len(expected) - left_out) // case.global_batch)
    if len(begun) == num_steps:  # the checkpoint was at the end: this is the next epoch
        begun = []
    used = list(chain(*begun, *rest))
    assert len(used) == len(set(used)) == len(expected) - left_out
    assert set(used) <= set(expected)
