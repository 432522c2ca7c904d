"""Loops as people write them give the numbers of one process on any number of ranks; see `tests/loops/habits.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.loops import check
from tests.loops.compare import distance
from tests.loops.description import Chosen, Loop
from tests.loops.generate import draw_loop
from tests.loops.optimizers import SPARSE_OPTIMIZERS
from tests.loops.render import render
from tests.loops.shrink import PLAIN_SGD, shrink
from tests.loops.summary import failure_text
from tests.loops.verdict import Verdict

PLAIN = Loop(
    seed=3,
    samples=(5, 3),
    num_data=24,
    epochs=2,
    blocks=(Chosen(name="linear"),),
    optimizer=PLAIN_SGD,
    habits=(),
    plan={"reducer": "scheduled", "transport": "gloo", "collective": "ring", "crosses_steps": True},
)


def failures(verdicts: list[Verdict]) -> str:
    return "\n".join(failure_text(verdict) for verdict in verdicts if verdict.is_failure)


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "num_loops"), [(3, 10), pytest.param(2, 20, marks=pytest.mark.slow)])
def test_loops_train_as_one_process(ranks: int, num_loops: int) -> None:
    verdicts = check.check_launch([draw_loop(seed, ranks) for seed in range(num_loops)])
    assert not failures(verdicts)
    assert sum(verdict.kind == "equal" for verdict in verdicts) >= 0.75 * num_loops


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_two_thousand_loops_train_as_one_process(ranks: int) -> None:
    verdicts = check.check([draw_loop(seed, ranks) for seed in range(100, 767)])
    assert not failures(verdicts)
    assert sum(verdict.is_sensitive for verdict in verdicts) < 0.05 * len(verdicts)


def test_the_same_seed_gives_the_same_script() -> None:
    assert render(draw_loop(11, 3)) == render(draw_loop(11, 3))
    assert len({render(draw_loop(seed, 2)) for seed in range(30)}) == 30


def test_a_description_survives_json() -> None:
    for seed in range(30):
        loop = draw_loop(seed, 4)
        assert Loop.from_data(loop.to_data()) == loop


def test_shrinking_keeps_what_makes_a_loop_fail() -> None:
    loop = next(loop for seed in range(1000) if (loop := draw_loop(seed, 2)).has("clip_norm") and loop.has("mlp"))

    def first_failing(loops: list[Loop]) -> Loop | None:
        return next((each for each in loops if each.has("clip_norm") and each.has("mlp")), None)

    smallest = shrink(loop, first_failing, rounds=30)
    assert [habit.name for habit in smallest.habits] == ["clip_norm"]
    assert [block.name for block in smallest.blocks] == ["mlp"]
    assert smallest.optimizer == PLAIN_SGD
    assert smallest.epochs == 1
    assert shrink(loop, lambda _: None) == loop


def test_shrinking_runs_no_more_often_than_allowed() -> None:
    asked = []

    def first_failing(loops: list[Loop]) -> Loop:
        asked.append(loops)
        return draw_loop(5, 3)

    shrink(draw_loop(5, 3), first_failing, rounds=7)
    assert len(asked) == 7


def test_a_distance_is_relative_and_notices_what_is_missing() -> None:
    import torch

    one = {"log": [3.0, 4.0], "state": {"a": torch.ones(4, dtype=torch.float64)}}
    near = {"log": [3.0, 4.0 + 5e-9], "state": one["state"]}
    assert distance(one, one) == 0
    assert distance(near, one) == pytest.approx(1e-9, rel=1e-3)
    assert distance({"log": [3.0], "state": one["state"]}, one) == float("inf")
    assert distance({"log": one["log"], "state": {}}, one) == float("inf")
    assert distance({"log": [float("nan"), 4.0], "state": one["state"]}, one) == float("inf")


@pytest.mark.mpi
@pytest.mark.slow
def test_ddp_updates_no_rows_of_samples_that_do_not_count_and_keeps_what_was_accumulated() -> None:
    """Rank 1 has no sample of the last batch; `enter` is frozen between the passes of a step, which use other branches."""
    ddp = {"reducer": "ddp", "transport": "gloo", "collective": "ring"}
    adam = {"kind": "Embedding", "optimizer": SPARSE_OPTIMIZERS[0]}
    rows = replace(PLAIN, num_data=25, blocks=(Chosen(name="sparse", options=adam),), plan=ddp)
    window = Chosen(name="accumulate", options={"k": 2, "no_sync": "both", "divide": False})
    branch = Chosen(name="branch", options={"every": 2})
    frozen = replace(PLAIN, blocks=(branch,), habits=(window, Chosen(name="freeze", options={"at": 1})), plan=ddp)
    verdicts = check.check_launch([rows, frozen])
    assert [verdict.kind for verdict in verdicts] == ["equal", "equal"], failures(verdicts)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_loss_that_one_rank_scales_is_noticed() -> None:
    """And the loop before it, which does not, passes."""
    wrong = replace(PLAIN, habits=(Chosen(name="scaled_on_one_rank"),))
    verdicts = check.check_launch([PLAIN, wrong])
    assert [verdict.kind for verdict in verdicts] == ["equal", "different"]
    assert "rank 1" in verdicts[1].text
