"""The quality guard accepts settings that train as without a codec, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "quality_guard.py"


@pytest.mark.mpi
def test_a_bad_setting_is_refused_and_good_ones_are_not(tmp_path: Path) -> None:
    done = mpirun(2, str(PROGRAM), str(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = {(case := json.loads(line))["name"]: case for line in done.out.splitlines() if line.startswith("{")}
    assert {name for name, case in cases.items() if case["holds"]} == {"fp16", "int8", "averaged"}, cases
    assert "codec topk is refused by the quality guard" in cases["almost nothing"]["text"]
