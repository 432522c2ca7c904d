"""How much our own machinery costs, away from any training step: `nox -s benchmarks`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from autotune.profilers.ranges import Ranges
from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.results.store.store import StudyStore
from autotune.search.optuna_study import SearchStudy
from autotune.space.space import Space
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.split import RankCost, balanced, bounds, proportional


@pytest.mark.parametrize("num_ranks", [4, 64, 1024])
def test_proportional_split(benchmark: BenchmarkFixture, num_ranks: int) -> None:
    weights = [1.0 + rank % 7 for rank in range(num_ranks)]
    total = 16 * num_ranks
    samples = benchmark(proportional, weights, total, bounds(num_ranks, total))
    assert sum(samples) == total


@pytest.mark.parametrize("num_ranks", [4, 64, 1024])
def test_balanced_split(benchmark: BenchmarkFixture, num_ranks: int) -> None:
    costs = [RankCost(fixed_s=0.01, per_sample_s=0.001 * (1 + rank % 7)) for rank in range(num_ranks)]
    total = 16 * num_ranks
    samples = benchmark(balanced, costs, total, bounds(num_ranks, total))
    assert sum(samples) == total


def test_a_record_put_on_disk(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    store = StudyStore(tmp_path)
    store.open_for_writing()
    plan = Plan(batch=BatchPlan(samples=(16, 16, 16, 16)))
    record = TrialRecord(number=0, role=Role.SEARCH, state=TrialState.COMPLETE, plan=plan, steps_s=(0.1,) * 20)
    benchmark(store.append, record)
    store.close()


@pytest.mark.parametrize("recorded", [False, True], ids=["off", "on, no profiler"])
def test_a_range_around_nothing(benchmark: BenchmarkFixture, recorded: bool) -> None:
    """Off: the cost that every step pays ten times and more. On: the cost of record_function without a profiler."""
    ranges, gradient = Ranges(), torch.zeros(1024)

    def enter() -> None:
        with ranges.bucket("post", 3, gradient):
            pass

    with ranges.recorded() if recorded else nullcontext():
        benchmark(enter)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_proposal_of_the_search(benchmark: BenchmarkFixture, tmp_path: Path, sampler: str) -> None:
    space = Space(
        global_batch=256,
        limits=bounds(4, 256),
        reference=(1.0, 0.7, 0.5, 0.25),
        transports=("gloo", "mpi"),
        codecs=("none",),
        max_bucket_log2=24,
    )
    search = SearchStudy(tmp_path / "search.db", space, [], sampler=sampler, seed=0)
    number = iter(range(10_000))

    def ask_and_tell() -> None:
        proposal = search.ask()
        assert proposal is not None
        record = TrialRecord(
            number=next(number),
            role=Role.SEARCH,
            state=TrialState.COMPLETE,
            plan=proposal.plan,
            params=proposal.params,
            search_number=proposal.number,
            steps_s=(0.1 + 0.01 * max(proposal.plan.batch.samples),),
        )
        search.tell(record)

    benchmark.pedantic(ask_and_tell, rounds=40, warmup_rounds=5)
