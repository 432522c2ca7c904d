"""The arguments of `job.batches()`, and DataLoaders whose parts are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from autotune.runtime.data.batch_request import read_request
from autotune.runtime.data.prefetch import Loading
from autotune.runtime.data.script_data import TrainingData
from autotune.workloads.errors import SpecError

DATA = TensorDataset(torch.arange(20))
NUMBERS = list(range(20))


def collate(samples: list[Any]) -> list[Any]:
    return samples


def init(worker: int) -> None:
    pass


def orders(given: Any, **how: Any) -> list[list[int]]:
    """Three epochs of one rank."""
    data = TrainingData((4,), 0, seed=3)
    batches = data.batches(given, **how)
    return [[int(sample) for dealt in batches for sample in dealt.batch[0]] for _ in range(3)]


# --- arguments -----------------------------------------------------------------------------------------------------------


def test_arguments_have_the_names_of_torchs_loader() -> None:
    request = read_request(DATA, 4, {"timeout": 5, "pin_memory": True, "persistent_workers": True, "num_workers": 2})
    assert request.loading == Loading(num_workers=2, timeout_s=5.0, pin_memory=True, persistent_workers=True)
    assert (request.shuffle, request.drop_last, request.sampler) == (True, False, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("batch_size", r"takes no `batch_size`: the plan sets batch sizes; use parallelize\(..., global_batch"),
        ("batch_sampler", "takes no `batch_sampler`: the plan sets batch sizes; use sampler="),
        ("generator", r"takes no `generator`: parallelize\(..., seed=...\) decides"),
        (
            "nonsense",
            "takes no `nonsense`; accepted: collate_fn, drop_last, epoch, loss_weights, multiprocessing_context",
        ),
    ],
)
def test_other_arguments_are_refused_with_what_to_do(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TrainingData((4,), 0, seed=0).batches(DATA, **{name: 3})  # type: ignore[arg-type]


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((number for number in NUMBERS), "given a generator, which can be iterated only once"),
        (3, r"needs a data set with len\(\) and indexing, or one that can be iterated; int has neither"),
        (Lengthless(), "Lengthless has neither"),
    ],
)
def test_what_is_no_data_set_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TrainingData((4,), 0, seed=0).batches(given)


def test_a_list_is_a_data_set() -> None:
    assert [dealt.batch.tolist() for dealt in TrainingData((5,), 0, seed=0).batches(NUMBERS[:6], shuffle=False)] == [
        [0, 1, 2, 3, 4],
        [5],
    ]


def test_memory_is_pinned_where_there_is_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingData((4,), 0, seed=0)
    assert next(iter(data.batches(NUMBERS, pin_memory=True))).num_samples == 4  # nothing to pin for, and no warning
    monkeypatch.setattr("autotune.runtime.data.prefetch.accelerator_type", lambda: "cuda")
    monkeypatch.setattr("autotune.runtime.data.prefetch.pin_memory", lambda batch: ("pinned", batch))
    assert next(iter(data.batches(NUMBERS, pin_memory=True))).batch[0] == "pinned"
    assert next(iter(data.batches(DATA, pin_memory=True))).batch[0] == "pinned"
    assert len(next(iter(data.batches(NUMBERS))).batch) == 4


# --- loaders -------------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_loader_are_used() -> None:
    loader = DataLoader(
        DATA,
        batch_size=4,
        drop_last=True,
        num_workers=2,
        prefetch_factor=5,
        collate_fn=collate,
        worker_init_fn=init,
        timeout=7,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    request = read_request(loader, 4, {"num_workers": 1})
    loading = request.loading
    assert request.dataset is DATA
    assert (request.shuffle, request.sampler, request.drop_last) == (False, None, True)
    assert (loading.num_workers, loading.prefetch_factor, loading.timeout_s) == (1, 5, 7.0)
    assert (loading.collate_fn, loading.worker_init_fn, loading.persistent_workers) == (collate, init, True)
    assert loading.multiprocessing_context is loader.multiprocessing_context
    assert read_request(DataLoader(DATA, batch_size=4), 4, {}).loading == Loading()


def test_a_loaders_order_is_kept() -> None:
    assert orders(DataLoader(DATA, batch_size=4)) == [NUMBERS] * 3
    assert orders(DataLoader(DATA, batch_size=4, shuffle=True)) == orders(DATA)
    assert orders(DataLoader(DATA, batch_size=4, shuffle=True), shuffle=False) == [NUMBERS] * 3
    assert orders(DataLoader(DATA, batch_size=4), sampler=[3, 2, 1, 0]) == [[3, 2, 1, 0]] * 3
    for each in orders(DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler([1, 5, 7]))):
        assert sorted(each) == [1, 5, 7]
    for each in orders(DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, num_samples=6))):
        assert len(set(each)) == 6


def test_samplers_that_only_state_whether_to_shuffle_give_their_flags() -> None:
    how: dict[str, Any] = {"num_replicas": 2, "rank": 1}
    assert orders(DATA, sampler=DistributedSampler(DATA, **how)) == orders(DATA)
    assert orders(DATA, sampler=DistributedSampler(DATA, **how, shuffle=False)) == [NUMBERS] * 3
    assert orders(DATA, sampler=DistributedSampler(DATA, **how, seed=9)) != orders(DATA)
    assert read_request(DATA, 4, {"sampler": DistributedSampler(DATA, **how, drop_last=True)}).drop_last
    assert not read_request(DATA, 4, {"sampler": DistributedSampler(DATA, **how)}).drop_last
    assert read_request(DATA, 4, {"sampler": DistributedSampler(DATA, **how), "drop_last": True}).drop_last
    assert orders(DATA, sampler=SequentialSampler(DATA)) == [NUMBERS] * 3


def test_the_same_loader_is_the_same_source_and_so_is_one_made_anew() -> None:
    data, loader = TrainingData((4,), 0, seed=3), DataLoader(DATA, batch_size=4, shuffle=True)
    found = [
        [int(sample) for dealt in data.batches(each) for sample in dealt.batch[0]]
        for each in (loader, loader, DataLoader(DATA, batch_size=4, shuffle=True))
    ]
    assert found == orders(DATA)


def test_two_loaders_of_one_data_set_make_different_batches() -> None:
    data = TrainingData((4,), 0, seed=3)
    plain, listed = DataLoader(NUMBERS, batch_size=4), DataLoader(NUMBERS, batch_size=4, collate_fn=collate)  # type: ignore[arg-type, var-annotated]
    for one, other in zip(data.batches(plain), data.batches(listed), strict=True):
        assert isinstance(other.batch, list)
        assert one.batch.tolist() == other.batch


def test_a_loaders_batch_is_the_global_one_or_a_ranks() -> None:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
    for batch_size in (4, 8):
        assert read_request(DataLoader(DATA, batch_size=batch_size, sampler=sampler), 8, {}).shuffle
    with pytest.raises(SpecError, match=r"is 3 on each of 2 ranks, 6 together, but .* is 8: use .*global_batch=6"):
        read_request(DataLoader(DATA, batch_size=3, sampler=sampler), 8, {})
    with pytest.raises(SpecError, match=r"batch_size is 4 but .* is 8: use .*global_batch=4\), .*or give the data set"):
        read_request(DataLoader(DATA, batch_size=4), 8, {})


def test_a_loader_that_makes_batches_of_its_own_is_refused() -> None:
    with pytest.raises(SpecError, match="has batch_size=None, but the plan divides"):
        read_request(DataLoader(DATA, batch_size=None), 4, {})
    plain: BatchSampler = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)
    with pytest.raises(SpecError, match="has a batch sampler of its own, but the plan divides"):
        read_request(DataLoader(DATA, batch_sampler=plain), 4, {})
