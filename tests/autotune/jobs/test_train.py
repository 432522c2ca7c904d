"""What training refuses before it has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from autotune.jobs.job import TrainJob
from autotune.jobs.train import lead_training
from autotune.workloads.errors import SpecError


def test_a_trace_that_could_not_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    job = TrainJob(workload="vgg", clusters=("mixed4",), results=tmp_path, trace=tmp_path / "nowhere" / "run.json")
    with pytest.raises(SpecError, match=r"cannot write trace '.*nowhere/run.json': No such file or directory"):
        lead_training(job, cast("Any", None), cast("Any", None))
