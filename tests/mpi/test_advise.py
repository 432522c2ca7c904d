"""`autotune advise --measure`: the plans of emulated clusters are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mpi
@pytest.mark.slow
def test_measured_steps_stand_beside_predictions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "advise", "--workload", "vgg", "--set", "size=tiny", "--cluster"]
    command += ["mixed4", "--remove", "host3", "--measure", "--json", "--quiet", "--results", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["changes"]
    assert [row["change"] for row in rows] == ["", "remove=host3"]
    for row in rows:
        assert 0.3 < row["measured_s"] / row["forecast"]["step_s"] < 30
