"""Retuned while training, over real ranks: samples move from a rank that gets slower, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "online_script.py"


@pytest.mark.mpi
@pytest.mark.slow
def test_a_script_is_retuned_and_trains_the_model_of_one_process(tmp_path: Path) -> None:
    done = mpirun(2, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["off"] < 1e-10
    first, second = found["all"]
    assert len(first) == len(second) == 38
    assert {sum(pair) for pair in zip(first, second, strict=True)} == {32, 24}  # the last batch of an epoch is short
    assert max(first[30:36]) < 13 < min(second[30:36])
    assert {kind for step, kind, _ in found["decisions"] if 20 <= step <= 24} == {"compute"}


@pytest.mark.mpi
def test_the_communication_configuration_of_a_script_changes_at_agreed_steps(tmp_path: Path) -> None:
    """With and without cross-step overlap, ring or owner shards with other shares; never amid an accumulation."""
    done = mpirun(2, str(PROGRAM.with_name("online_configurations.py")), cwd=tmp_path)
    assert done.code == 0, done.err
    first, second = json.loads(done.out)
    assert first["off"] < 1e-10
    assert second["off"] < 1e-10
    assert first["decisions"] == 7
    assert first["used"] == second["used"]
    assert list(dict.fromkeys(first["used"])) == [4, 0, 1, 2, 3, 5, 6]
