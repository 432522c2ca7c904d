"""Sums within hosts first, on hosts of one and of three ranks: every codec trains as it does over the ring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.workloads.plan import CODECS
from tests.mpi.launch import mpirun

PROGRAM = Path(__file__).parent / "programs" / "hierarchical_codecs.py"
ROUNDED = {"fp16", "bf16"}
"""Sums of 16-bit floats depend on the order of the additions."""


@pytest.mark.mpi
@pytest.mark.slow
def test_every_codec_trains_as_over_the_ring(tmp_path: Path) -> None:
    done = mpirun(4, str(PROGRAM), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    bucketed = sum(kind.is_one_round for kind in CODECS.values())
    assert len(cases) == 2 * (len(CODECS) + bucketed)
    assert [case for case in cases if not case["error"] <= (1e-6 if case["codec"] in ROUNDED else 1e-12)] == []
    unlike = {case["codec"] for case in cases if not case["learned"] > 1e-4}
    assert not unlike, "the losses do not change, so equal ones show nothing"
