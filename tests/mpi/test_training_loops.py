"""Training loops as people write them compute on several ranks what they do in one process: see programs/training_loops.py."""

from __future__ import annotations

import ast
import json
from math import dist, hypot
from pathlib import Path
from typing import Any

import pytest

from tests.gloo_ranks import in_threads
from tests.mpi.launch import ROOT, mpirun

PROGRAM = ROOT / "tests" / "mpi" / "programs" / "training_loops.py"
EXACT, BF16 = 1e-10, 3e-3
QUICK = ("[overlap]", "[ddp]")
"""The communication configurations of the default tests: the one with most to go wrong, and torch's own."""


def names() -> list[str]:
    """Of the loops, read without running anything."""
    tree = ast.parse(PROGRAM.read_text())
    return [
        f.name
        for f in tree.body
        if isinstance(f, ast.FunctionDef) and any("loop" in ast.dump(d) for d in f.decorator_list)
    ]


def computed(folder: Path, num_ranks: int, *chosen: str) -> dict[str, Any]:
    file = folder / f"on-{num_ranks}.json"
    done = mpirun(num_ranks, str(PROGRAM), str(file), *chosen, cwd=folder, timeout_s=240)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def check(alone: dict[str, Any], found: dict[str, Any], name: str, comms: tuple[str, ...] = ("[",)) -> None:
    chosen = [key for key in alone if key.startswith(f"{name} [") and any(comm in key for comm in comms)]
    for key in chosen:
        assert key in found, f"{key} did not end"
        expected, here, tolerance = alone[key], found[key], EXACT
        assert not isinstance(here, str), f"{key}: {here}"
        if isinstance(expected, dict):
            expected, here, tolerance = expected["close"], here["close"], BF16
        assert len(here) == len(expected)
        away = dist(here, expected) / max(hypot(*expected), 1e-300) if expected else 0.0
        assert away <= tolerance, f"{key} is {away:.1e} away from one process"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return computed(tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one rank and two ranks compute, at the same time."""
    folder = tmp_path_factory.mktemp("quick")
    return in_threads(2, lambda number: computed(folder, number + 1, *QUICK), limit_s=250)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return computed(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def on_three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return computed(tmp_path_factory.mktemp("three"), 3)


@pytest.mark.mpi
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", names())
def test_two_ranks_compute_what_one_process_does(name: str, quick: list[dict[str, Any]]) -> None:
    check(*quick, name, QUICK)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", names())
def test_two_ranks_compute_so_by_every_configuration(name: str, alone: dict[str, Any], on_two: dict[str, Any]) -> None:
    assert any(key.startswith(f"{name} [") for key in alone)
    check(alone, on_two, name)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", names())
def test_three_ranks_compute_what_one_process_does(name: str, alone: dict[str, Any], on_three: dict[str, Any]) -> None:
    check(alone, on_three, name)
