"""A study of many trials is read and reported quickly."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.results.store.record import Role
from autotune.results.store.store import StudyStore
from autotune.workloads.serial import to_data
from tests.results import sample

NUM_TRIALS = 10_000


def write_study(folder: Path) -> None:
    store, generator = StudyStore(folder / "vgg" / "mixed4"), random.Random(0)
    store.folder.mkdir(parents=True)
    store.write_info(sample.info())
    store.write_comparison(sample.comparison())
    records = sample.records()
    like = next(record for record in records if record.role is Role.SEARCH and record.step_s)
    for number in range(len(records), NUM_TRIALS):
        slower = generator.uniform(1, 3)
        records.append(dataclasses.replace(like, number=number, steps_s=tuple(slower * step for step in like.steps_s)))
    lines = (json.dumps(to_data(record)) + "\n" for record in records)
    (store.folder / "records.jsonl").write_text("".join(lines))


@pytest.mark.slow
def test_a_report_of_ten_thousand_trials_takes_two_seconds(tmp_path: Path) -> None:
    """Of CPU time, which other work on the machine disturbs little."""
    write_study(tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "report", "--results", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "vgg" in done.stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2
