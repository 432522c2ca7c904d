"""Losses that are wrong: refused at set-up, once; one that becomes nan ends its trial, or the training, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import Finished, autotune, refused

PROGRAMS = Path(__file__).parent / "programs"
PROMPT_S = 40

pytestmark = pytest.mark.mpi


def run(command: str, folder: Path, *more: str, **environment: str) -> Finished:
    path = {"PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[2]}"}
    return autotune(2, command, "--workload", "odd_losses:factory", *more, cwd=folder, env=path | environment)


@pytest.mark.parametrize(
    "command", ["sweep", *(pytest.param(each, marks=pytest.mark.slow) for each in ("train", "profile"))]
)
def test_a_loss_that_is_a_dict_is_refused_before_anything_runs(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path, "--set", "kind=dict")
    words = (
        'odd_losses:factory: loss() returned a dict; return one scalar tensor, the mean over samples (`out["loss"]`)'
    )
    refused(done, f"autotune: error: {words}")


def test_a_loss_that_is_a_sum_is_refused(tmp_path: Path) -> None:
    refused(run("sweep", tmp_path, "--set", "kind=sum"), "odd_losses:factory: loss() is a sum over samples")


@pytest.mark.slow
def test_a_loss_that_becomes_nan_fails_its_trial_and_ends_training(tmp_path: Path) -> None:
    quick = ("--trials", "1", "--steps", "3", "--rounds", "1", "--json")
    done = run("sweep", tmp_path, *quick, "--study", "nan", NAN_FROM="4")
    assert done.code == 3, done.err
    (path,) = tmp_path.glob("results/data/nan/*/records.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    reason = "rank 1: the loss is nan in step 2: lower the learning rate, or look for nan in the data"
    assert {(row["state"], row["reason"]) for row in rows} == {("failed", reason)}
    assert f"no plan could be measured: {reason}" in done.errors[0]
    assert run("sweep", tmp_path, *quick).code == 0
    done = run("train", tmp_path, "--steps", "1000", "--rounds", "1", NAN_FROM="4")
    assert done.code == 1, done.err
    assert done.errors == ["autotune: error: training failed: " + reason.replace("step 2", "step 4")]
    assert done.seconds < PROMPT_S
