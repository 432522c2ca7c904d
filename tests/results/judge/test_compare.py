"""Which contender is kept: the best plan, unless noise is all that speaks for it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from autotune.results.judge.compare import faster_without, ratio, winner
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, Comparison, Contender
from autotune.workloads.plan import default_plan
from tests.results import sample

DEFAULT = default_plan(sample.EVEN)


def contender(name: str, rounds_s: Sequence[float], *, reverts: str = "") -> Contender:
    plan = DEFAULT if name.startswith(DDP_DEFAULT) else sample.plan()
    return Contender(name=name, plan=plan, rounds_s=tuple(rounds_s), ranks=(), reverts=reverts)


def noisy(step_s: float, seed: int, num_rounds: int = 10, noise: float = 0.02) -> list[float]:
    generator = random.Random(seed)
    return [step_s * generator.gauss(1, noise) for _ in range(num_rounds)]


def compare(*found: Contender) -> Comparison:
    return Comparison(contenders=found, steps_per_round=2)


def test_a_best_plan_that_is_clearly_faster_than_the_default_is_kept() -> None:
    best = contender(BEST, noisy(0.21, 1))
    assert winner(compare(contender(DDP_DEFAULT, noisy(0.49, 0)), best)) is best


@pytest.mark.parametrize("seed", range(5))
def test_the_default_is_kept_where_the_best_is_faster_within_noise_only(seed: int) -> None:
    """The best plan's median is a little lower by construction, but it loses about as many rounds as it wins."""
    generator = random.Random(seed)
    best_s = [0.999 - 0.1 * generator.random() if i % 2 else 1.0 + 0.1 * generator.random() for i in range(9)] + [0.9]
    default = contender(DDP_DEFAULT, [1.0] * 10)
    assert winner(compare(default, contender(BEST, best_s))) is default


def test_two_rounds_prove_nothing_so_the_default_is_kept() -> None:
    default = contender(DDP_DEFAULT, [0.5, 0.5])
    assert winner(compare(default, contender(BEST, [0.1, 0.1]))) is default


def test_the_default_is_kept_where_it_is_the_fastest() -> None:
    default = contender(DDP_DEFAULT, noisy(0.2, 0))
    assert winner(compare(default, contender(BEST, noisy(0.3, 1)))) is default


def test_ddp_tuned_manually_is_kept_where_it_clearly_beats_the_best_plan() -> None:
    tuned = contender(DDP_TUNED, noisy(0.20, 2))
    found = compare(contender(DDP_DEFAULT, noisy(0.49, 0)), tuned, contender(BEST, noisy(0.24, 1)))
    assert winner(found) is tuned


def test_the_best_plan_is_kept_where_hand_tuning_is_faster_within_noise_only() -> None:
    tuned_s = [0.19, 0.22, 0.18, 0.21, 0.19, 0.22, 0.19, 0.21, 0.19, 0.19]
    best = contender(BEST, [0.2] * 10)
    assert winner(compare(contender(DDP_DEFAULT, [0.5] * 10), contender(DDP_TUNED, tuned_s), best)) is best


def test_an_ablation_explains_but_never_wins() -> None:
    best = contender(BEST, noisy(0.24, 1))
    variant = contender(f"{BEST}, codec none", noisy(0.20, 2), reverts="codec")
    assert winner(compare(contender(DDP_DEFAULT, noisy(0.49, 0)), best, variant)) is best


def test_the_knob_that_costs_most_is_named_if_it_costs_more_than_a_few_percent() -> None:
    best = contender(BEST, [0.240] * 10)
    little, much = (
        contender(f"{BEST}, {knob}", [step_s] * 10, reverts=knob) for knob, step_s in (("a", 0.238), ("b", 0.2))
    )
    assert faster_without(compare(best, little)) is None
    assert faster_without(compare(best, little, much)) is much
    assert faster_without(compare(little, much)) is None


def test_the_default_measured_again_never_wins() -> None:
    default = contender(DDP_DEFAULT, [0.50] * 10)
    found = compare(default, contender(BEST, [0.49999, 0.50001] * 5), contender(DDP_DEFAULT + AGAIN, [0.4] * 10))
    assert winner(found) is default


def test_without_a_default_the_best_plan_is_kept() -> None:
    best = contender(BEST, noisy(0.21, 1))
    assert winner(compare(contender(DDP_TUNED, noisy(0.24, 0)), best)) is best


def test_one_lucky_round_wins_nothing() -> None:
    best = contender(BEST, [0.20] * 10)
    lucky = contender(DDP_TUNED, [0.30] * 9 + [0.01])
    assert winner(compare(contender(DDP_DEFAULT, [0.5] * 10), lucky, best)) is best


def test_a_contender_that_finished_no_round_takes_no_part() -> None:
    best = contender(BEST, noisy(0.21, 1))
    found = compare(contender(DDP_DEFAULT, noisy(0.49, 0)), contender(DDP_TUNED, []), best)
    assert winner(found) is best


def test_a_default_that_finished_no_round_is_not_kept() -> None:
    best = contender(BEST, noisy(0.21, 1))
    assert winner(compare(contender(DDP_DEFAULT, []), contender(DDP_TUNED, noisy(0.24, 0)), best)) is best


def test_a_ratio_is_taken_over_the_rounds_that_both_finished() -> None:
    found = ratio(contender(DDP_DEFAULT, [2.0] * 8), contender(BEST, [1.0] * 6 + [50.0] * 4))
    assert (found.value, found.num_rounds) == (2.0, 8)
    assert ratio(contender(DDP_DEFAULT, [2.0] * 6), contender(BEST, [1.0] * 6 + [50.0] * 4)).low == 2.0


def test_the_made_up_sweep_keeps_its_best_plan() -> None:
    assert winner(sample.comparison()).name == BEST
