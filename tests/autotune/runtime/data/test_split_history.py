"""A short batch: the split's proportions, no rank with too few samples; also where samples are dealt by work."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.runtime.data.dealing import deal
from autotune.runtime.data.split_history import short_split, slice_of

SPLITS = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(lambda split: sum(split) > 1)


@given(SPLITS, st.integers(1, 4), st.data())
def test_a_rank_of_a_short_batch_has_enough_samples_or_none(split: list[int], fewest: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, sum(split) - 1))
    found = short_split(split, length, fewest)
    assert sum(found) == length
    assert all(count == 0 or count >= min(fewest, length) for count in found)
    assert all(count == 0 for count, share in zip(found, split, strict=True) if share == 0)
    if all(count == 0 or count >= fewest for count in short_split(split, length, 1)):
        assert found == short_split(split, length, 1)


@given(SPLITS, st.integers(1, 3))
def test_slices_follow_each_other(split: list[int], fewest: int) -> None:
    for length in range(1, sum(split) + 1):
        slices = [slice_of(split, length, rank, fewest) for rank in range(len(split))]
        assert [n for each in slices for n in range(length)[each]] == list(range(length))
    assert [each.stop - each.start for each in slices] == split  # a whole batch has the stated split


def test_a_whole_samples_more_where_it_must_be() -> None:
    assert short_split((2, 2, 2, 2), 7, 2) == (3, 2, 2, 0)
    assert short_split((27, 18, 13, 6), 5, 2) == (3, 2, 0, 0)
    assert short_split((4, 4), 1, 2) == (1, 0)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.integers(1, 3),
)
def test_a_rank_that_work_is_dealt_to_has_enough_samples_or_none(
    shares: list[int], work: list[int], fewest: int
) -> None:
    owners = deal(torch.tensor(work, dtype=torch.float64), shares, fewest)
    counts = torch.bincount(owners, minlength=len(shares)).tolist()
    assert sum(counts) == len(work)
    assert all(count == 0 or count >= min(fewest, len(work)) for count in counts)
    assert all(count == 0 for count, share in zip(counts, shares, strict=True) if share == 0)
