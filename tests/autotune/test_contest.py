"""The comparison that ends a sweep: who runs in which order, and who is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from autotune.contest import Entry, contenders, entries, fastest, reverted, winner
from autotune.runtime.crew import Measurement
from results.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, Comparison, Contender, Role, TrialState
from tests.results import sample
from workloads.plan import MIB, default_plan

DEFAULT = default_plan(sample.EVEN)


def contender(name: str, rounds_s: Sequence[float], **changes: str) -> Contender:
    plan = DEFAULT if name.startswith(DDP_DEFAULT) else sample.plan(**changes)
    return Contender(name=name, plan=plan, rounds_s=tuple(rounds_s), ranks=())


def noisy(step_s: float, seed: int, num_rounds: int = 10, noise: float = 0.02) -> list[float]:
    generator = random.Random(seed)
    return [step_s * generator.gauss(1, noise) for _ in range(num_rounds)]


def compare(*found: Contender) -> Comparison:
    return Comparison(contenders=found, steps_per_round=2)


# --- the fastest trial -------------------------------------------------------------------------------------------------


def test_the_fastest_trial_is_the_one_with_the_least_median_step() -> None:
    quickest = fastest(sample.records())
    assert quickest is not None
    assert quickest.step_s == min(record.step_s for record in sample.records() if record.step_s is not None)


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


# --- entries -----------------------------------------------------------------------------------------------------------


def test_entries_are_default_peer_best_its_knobs_and_the_default_again() -> None:
    best = sample.plan(bucket_bytes=MIB, codec="bf16")
    chosen = entries(sample.records(), best)
    assert [entry.name for entry in chosen] == [
        DDP_DEFAULT,
        DDP_TUNED,
        BEST,
        f"{BEST}, even split",
        f"{BEST}, 25 MiB buckets",
        f"{BEST}, codec none",
        DDP_DEFAULT + AGAIN,
    ]
    assert chosen[0].plan == chosen[-1].plan == DEFAULT
    assert chosen[2].plan == best


def test_the_peer_is_the_fastest_of_the_hand_tuned_plans() -> None:
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


def test_a_best_plan_alone_is_compared_with_nobody() -> None:
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
    assert set(changed) == {"batch split", "bucket size", "codec", "transport"}


def test_a_knob_that_is_as_in_the_default_anyway_is_left_out() -> None:
    same_split = sample.plan(sample.EVEN, bucket_bytes=MIB)
    assert [entry.reverts for entry in reverted(same_split, DEFAULT)] == ["bucket size"]


def test_reverted_plans_can_run() -> None:
    for entry in reverted(sample.plan(codec="bf16"), DEFAULT):
        entry.plan.validate(num_ranks=4, global_batch=64)


# --- the winner --------------------------------------------------------------------------------------------------------


def test_a_plan_that_is_clearly_faster_wins() -> None:
    best = contender(BEST, noisy(0.21, 1))
    assert winner(compare(contender(DDP_DEFAULT, noisy(0.49, 0)), best)) is best


def test_the_fastest_of_several_wins_also_a_plan_with_a_knob_put_back() -> None:
    without = contender(f"{BEST}, codec none", noisy(0.20, 2))
    found = compare(contender(DDP_DEFAULT, noisy(0.49, 0)), contender(BEST, noisy(0.24, 1)), without)
    assert winner(found) is without


@pytest.mark.parametrize("seed", range(5))
def test_the_default_is_kept_where_the_best_is_faster_within_noise_only(seed: int) -> None:
    """The best plan's median is a little lower by construction, but it wins as many rounds as it loses."""
    generator = random.Random(seed)
    default_s = [1.0] * 10
    best_s = [0.999 - 0.1 * generator.random() if i % 2 else 1.0 + 0.1 * generator.random() for i in range(9)] + [0.9]
    default = contender(DDP_DEFAULT, default_s)
    assert winner(compare(default, contender(BEST, best_s))) is default


def test_two_rounds_prove_nothing_so_the_default_is_kept() -> None:
    default = contender(DDP_DEFAULT, [0.5, 0.5])
    assert winner(compare(default, contender(BEST, [0.1, 0.1]))) is default


def test_the_default_wins_where_it_is_the_fastest() -> None:
    default = contender(DDP_DEFAULT, noisy(0.2, 0))
    assert winner(compare(default, contender(BEST, noisy(0.3, 1)))) is default


def test_without_a_default_the_fastest_wins() -> None:
    best = contender(BEST, noisy(0.21, 1))
    assert winner(compare(contender(DDP_TUNED, noisy(0.24, 0)), best)) is best


def test_the_winner_is_judged_by_medians_not_by_one_lucky_round() -> None:
    steady = contender(BEST, [0.20] * 10)
    lucky = contender(f"{BEST}, even split", [0.30] * 9 + [0.01])
    assert winner(compare(contender(DDP_DEFAULT, [0.5] * 10), steady, lucky)) is steady


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
