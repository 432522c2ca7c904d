"""Which cores and how many threads each rank gets, by the binding it was started with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.runtime.launch.core_choice import RankCores, choose_cores

EIGHT = tuple(range(8))
BOUND = RankCores(host="a", own=(0,), launcher=EIGHT, is_one_core=True, started_by="Open MPI's mpirun", is_mpirun=True)


def bound_to(*cores: int, **changes: object) -> RankCores:
    return replace(BOUND, own=cores, is_one_core=len(cores) == 1, **changes)  # type: ignore[arg-type]


def test_the_default_binding_of_mpirun_is_undone() -> None:
    choices, notes = choose_cores([bound_to(0), bound_to(1)])
    assert [choice.cores for choice in choices] == [EIGHT, EIGHT]
    assert [(choice.rebinds, choice.num_threads) for choice in choices] == [(True, 4), (True, 4)]
    assert len(notes) == 1
    assert "each rank is bound to one core of 8 by Open MPI's mpirun: undone" in notes[0]
    assert "--bind-to none" in notes[0]


def test_hardware_threads_of_one_core_are_one_core() -> None:
    choices, _ = choose_cores([replace(bound_to(0, 4), is_one_core=True), replace(bound_to(1, 5), is_one_core=True)])
    assert [choice.rebinds for choice in choices] == [True, True]


def test_one_core_each_is_a_fair_share_of_as_many_cores() -> None:
    both = [bound_to(0, launcher=(0, 1)), bound_to(1, launcher=(0, 1))]
    choices, notes = choose_cores(both)
    assert [(choice.rebinds, choice.num_threads) for choice in choices] == [(False, 1), (False, 1)]
    assert notes == ()


def test_a_binding_to_several_cores_is_kept() -> None:
    choices, notes = choose_cores([bound_to(0, 1, 2, 3), bound_to(0, 1, 2, 3), bound_to(4, 5, 6, 7)])
    assert [(choice.rebinds, choice.num_threads) for choice in choices] == [(False, 2), (False, 2), (False, 4)]
    assert notes == ()


def test_a_binding_that_the_user_asked_for_is_kept_and_named() -> None:
    choices, notes = choose_cores([bound_to(0, asked="--bind-to"), bound_to(1)])
    assert not any(choice.rebinds for choice in choices)
    assert "as --bind-to asks" in notes[0]


def test_a_binding_of_slurm_is_kept_and_named() -> None:
    ranks = [bound_to(number, started_by="srun", is_mpirun=False) for number in range(2)]
    choices, notes = choose_cores(ranks)
    assert not any(choice.rebinds for choice in choices)
    assert "--cpus-per-task" in notes[0]


@pytest.mark.parametrize(
    ("on_a", "on_b", "threads"), [(1, 3, [8, 2, 2, 2]), (2, 2, [4, 4, 4, 4]), (9, 1, [1] * 9 + [8])]
)
def test_threads_are_divided_by_the_ranks_of_the_same_host(on_a: int, on_b: int, threads: list[int]) -> None:
    ranks = [bound_to(*EIGHT)] * on_a + [bound_to(*EIGHT, host="b")] * on_b
    choices, notes = choose_cores(ranks)
    assert [choice.num_threads for choice in choices] == threads
    assert notes == ()


def test_only_some_ranks_are_bound() -> None:
    _, notes = choose_cores([bound_to(0), bound_to(*EIGHT)])
    assert "1 of 2 ranks are bound" in notes[0]
