"""Parameters after 100 steps, scheduled against plain, on 2 and 4 ranks: `python -m tests.benchmarks.equality FOLDER`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from results.environment import describe_environment
from tests.mpi.launch import ROOT, mpirun

PROGRAM = ROOT / "tests" / "mpi" / "programs" / "equal_training.py"
NUM_STEPS = 100
BARS = {"float64": 1e-10, "float32": 3.0}
"""Relative distance of all parameters; in float32 as a multiple of what another order of adding ranks changes."""


def measure(num_ranks: int, dtype: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        done = mpirun(num_ranks, str(PROGRAM), str(NUM_STEPS), dtype, cwd=Path(folder), timeout_s=1500)
    if done.code:
        raise RuntimeError(done.err)
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]


def off(case: dict[str, Any]) -> float:
    return float(case["error"] if case["dtype"] == "float64" else case["error"] / max(case["order"], 1e-12))


def main(folder: Path) -> int:
    cases = [case for ranks in (2, 4) for dtype in BARS for case in measure(ranks, dtype)]
    worst = {dtype: max(off(case) for case in cases if case["dtype"] == dtype) for dtype in BARS}
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "command": "nox -s equality",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "num_steps": NUM_STEPS,
        "bars": BARS,
        "worst": worst,
        "cases": cases,
    }
    (folder / "equality.json").write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{len(cases)} cases, worst {worst}, bars {BARS}\n")
    return int(any(worst[dtype] > bar for dtype, bar in BARS.items()))


sys.exit(main(Path(sys.argv[1])))
