"""Our folders are installed inside `autotune`: a user's own modules of the same names are not in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from torch import nn

import autotune
import results, workloads, profilers, tests

assert results.OWN and workloads.OWN and profilers.OWN and tests.OWN
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
with autotune.parallelize(model, optimizer, global_batch=4) as job:
    for x, y in job.batches(data):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
print("trained")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with modules named like ours."""
    for name in ("results", "workloads", "profilers", "tests"):
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_script_beside_modules_named_like_ours_trains(folder: Path) -> None:
    done = run(folder, "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_command_in_such_a_folder_works(folder: Path) -> None:
    done = run(folder, "-m", "autotune", "simulate", "--workload", "mlp-tiny", "--cluster", "mixed4", "--json")
    assert done.returncode == 0, done.stderr
