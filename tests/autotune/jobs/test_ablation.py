"""The comparison that ends a sweep: who takes part, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.jobs.ablation import Entry, contenders, entries, reverted
from autotune.results.judge.selection import by_speed, fastest
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, Role, TrialRecord, TrialState
from autotune.runtime.trial.workers import Measurement
from autotune.workloads.plan import MIB, CommPlan, CompressionPlan, default_plan
from tests.results import sample

DEFAULT = default_plan(sample.EVEN)


# --- the fastest trial -------------------------------------------------------------------------------------------------


def test_the_fastest_trial_is_the_one_with_the_least_median_step() -> None:
    steps_s = (0.3, 0.21, 0.4)
    records = [sample.trial(i, Role.SEARCH, sample.plan(bucket_bytes=MIB << i), s) for i, s in enumerate(steps_s)]
    quickest = fastest(records)
    assert quickest is not None
    assert quickest.number == 1


def test_the_fastest_trial_may_be_asked_for_by_role() -> None:
    peer, default = fastest(sample.records(), Role.PEER), fastest(sample.records(), Role.DEFAULT)
    assert peer is not None
    assert default is not None
    assert (peer.number, default.number) == (3, 0)


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INFEASIBLE, TrialState.PRUNED])
def test_a_trial_without_a_step_time_is_never_the_fastest(state: TrialState) -> None:
    failed = sample.refused(0, Role.SEARCH, sample.plan(), state, "no")
    assert fastest([failed]) is None
    found = fastest([failed, sample.trial(1, Role.SEARCH, sample.plan(), 9.0)])
    assert found is not None
    assert found.number == 1


def test_a_plan_measured_twice_counts_with_all_its_steps() -> None:
    lucky, steady = sample.plan(bucket_bytes=MIB), sample.plan(bucket_bytes=2 * MIB)
    records = [
        sample.trial(0, Role.SEARCH, lucky, 0.20),
        sample.trial(1, Role.SEARCH, steady, 0.22),
        sample.trial(2, Role.SEARCH, lucky, 0.30),
    ]
    assert [record.number for record in by_speed(records)] == [1, 0]


def test_of_plans_that_noise_cannot_tell_apart_the_one_that_uses_less_cpu_time_is_first() -> None:
    busy, modest, slow = (sample.plan(bucket_bytes=size * MIB) for size in (1, 2, 4))
    records = [
        with_cpu(sample.trial(0, Role.SEARCH, busy, 0.200), 0.30),
        with_cpu(sample.trial(1, Role.SEARCH, modest, 0.201), 0.20),
        with_cpu(sample.trial(2, Role.SEARCH, slow, 0.240), 0.05),
    ]
    assert [record.number for record in by_speed(records)] == [1, 0, 2]


def with_cpu(record: TrialRecord, cpu_s: float) -> TrialRecord:
    ranks = tuple(replace(rank, cpu_s=cpu_s / len(record.ranks)) for rank in record.ranks)
    return replace(record, ranks=ranks)


# --- entries -----------------------------------------------------------------------------------------------------------


def test_entries_are_default_peer_best_its_knobs_and_the_default_again() -> None:
    best = sample.plan(bucket_bytes=MIB, codec="fp16")
    chosen = entries(sample.records(), best)
    assert [entry.name for entry in chosen] == [
        DDP_DEFAULT,
        DDP_TUNED,
        BEST,
        f"{BEST}, even split",
        f"{BEST}, 25 MiB buckets",
        f"{BEST}, codec none",
        f"{BEST}, DDP reducer",
        DDP_DEFAULT + AGAIN,
    ]
    assert chosen[0].plan == chosen[-1].plan == DEFAULT
    assert chosen[2].plan == best


def test_the_peer_is_the_fastest_of_the_tuned_ddp_plans() -> None:
    peer = fastest(sample.records(), Role.PEER)
    assert peer is not None
    assert entries(sample.records(), sample.plan())[1].plan == peer.plan


def test_names_of_entries_are_all_different() -> None:
    names = [entry.name for entry in entries(sample.records(), sample.plan(codec="bf16"))]
    assert len(names) == len(set(names))


def test_a_default_that_did_not_fit_takes_no_part() -> None:
    without = [record for record in sample.records() if record.role is not Role.DEFAULT]
    without.append(sample.refused(99, Role.DEFAULT, DEFAULT, TrialState.INFEASIBLE, sample.NO_ROOM))
    assert [entry.name for entry in entries(without, sample.plan())] == [DDP_TUNED, BEST]


def test_a_best_plan_alone_is_compared_with_no_other() -> None:
    assert entries([], sample.plan()) == [Entry(name=BEST, plan=sample.plan())]


# --- reverted knobs ----------------------------------------------------------------------------------------------------


def test_each_reverted_plan_differs_from_the_best_in_its_own_knob_only() -> None:
    best = sample.plan(codec="fp16")
    changed = {entry.reverts: entry.plan for entry in reverted(best, default_plan(sample.EVEN, transport="mpi"))}
    assert changed["batch split"] == sample.plan(sample.EVEN, codec="fp16")
    assert changed["bucket size"] == sample.plan(bucket_bytes=25 * MIB, codec="fp16")
    assert changed["codec"] == sample.plan(codec="none")
    assert changed["transport"].comm.transport == "mpi"
    assert changed["transport"].comm.bucket_bytes == best.comm.bucket_bytes
    assert changed["reducer"] == sample.plan(codec="fp16", reducer="ddp")
    assert set(changed) == {"batch split", "bucket size", "codec", "reducer", "transport"}


def test_a_knob_that_is_as_in_the_default_anyway_is_left_out() -> None:
    same_split = sample.plan(sample.EVEN, bucket_bytes=MIB)
    assert [entry.reverts for entry in reverted(same_split, DEFAULT)] == ["bucket size", "reducer"]


@pytest.mark.parametrize("codec", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("samples", [sample.FAIR, (40, 24, 0, 0)])
def test_reverted_plans_can_run(codec: str, samples: tuple[int, ...]) -> None:
    for entry in reverted(sample.plan(samples, codec=codec), DEFAULT):
        entry.plan.validate(num_ranks=4, global_batch=64)


def test_the_reducer_is_reset_only_where_ddp_could_run_the_plan() -> None:
    assert "reducer" in {entry.reverts for entry in reverted(sample.plan(), DEFAULT)}
    assert "reducer" not in {entry.reverts for entry in reverted(sample.plan(codec="bf16"), DEFAULT)}
    assert "reducer" in {entry.reverts for entry in reverted(sample.plan((40, 24, 0, 0)), DEFAULT)}


# --- contenders --------------------------------------------------------------------------------------------------------


def test_contenders_carry_what_their_entries_measured() -> None:
    chosen = entries(sample.records(), sample.plan())
    measured = [
        Measurement(state=TrialState.COMPLETE, steps_s=(float(i), i + 0.5), ranks=sample.ranks(sample.EVEN, 0.5))
        for i in range(len(chosen))
    ]
    found = contenders(chosen, measured)
    assert [(c.name, c.plan, c.reverts) for c in found] == [(e.name, e.plan, e.reverts) for e in chosen]
    assert [c.rounds_s for c in found] == [m.steps_s for m in measured]
    assert all(c.ranks == m.ranks for c, m in zip(found, measured, strict=True))


def test_a_measurement_that_is_missing_is_not_papered_over() -> None:
    with pytest.raises(ValueError, match="shorter"):
        contenders([Entry(name=BEST, plan=sample.plan())], [])


def test_a_schedule_is_reset_knob_by_knob() -> None:
    comm = CommPlan(
        reducer="scheduled", partition_bytes=MIB, credit_bytes=2 * MIB, crosses_steps=True, collective="shards"
    )
    best = replace(sample.plan(), comm=comm, compression=CompressionPlan(factors=("fc1",)))
    changed = {entry.reverts: entry.plan for entry in reverted(best, DEFAULT)}
    assert set(changed) == {
        "batch split",
        "partition size",
        "cross-step overlap",
        "sufficient factors",
        "collective",
        "reducer",
    }
    assert changed["reducer"].comm == CommPlan(bucket_bytes=MIB, collective="shards")
    assert changed["sufficient factors"].compression == CompressionPlan()
    assert not changed["cross-step overlap"].comm.crosses_steps
    for plan in changed.values():
        plan.validate(num_ranks=4, global_batch=sum(best.batch.samples))


def test_a_reset_that_no_job_runs_is_left_out() -> None:
    """Owner shards over gloo against the default of GPUs: NCCL carries no messages from rank to rank."""
    default = replace(DEFAULT, comm=CommPlan(reducer="ddp", transport="nccl"))
    best = replace(DEFAULT, comm=CommPlan(reducer="scheduled", collective="shards", transport="gloo"))
    for entry in reverted(best, default):
        entry.plan.check_runnable()
