"""Parameters after 100 steps, scheduled against plain, on 2 and 4 ranks: `python -m tests.benchmarks.equality [again]`.

A job for each model, type and number of ranks; what it found is kept when it ends, and `again` runs only what is missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from autotune.results.store.environment import describe_environment
from tests.mpi.launch import ROOT, mpirun

PROGRAM = ROOT / "tests" / "mpi" / "programs" / "equal_training.py"
KEPT = ROOT / "results" / "published" / "equality" / "equality.json"
NUM_STEPS = 100
MODELS = ("mlp", "tied", "gpt", "resnet")
BARS = {"float64": 1e-10, "float32": 3.0}
"""Relative distance of all parameters; in float32 as a multiple of what rounding differently changes in plain training, the most
of twelve ways to do so.
"""
JOBS = tuple(product((2, 4), BARS, MODELS))


def measure(num_ranks: int, dtype: str, model: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        done = mpirun(num_ranks, str(PROGRAM), str(NUM_STEPS), dtype, model, cwd=Path(folder), timeout_s=900)
    if done.code:
        raise RuntimeError(done.err)
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]


def off(case: dict[str, Any]) -> float:
    return float(case["error"] if case["dtype"] == "float64" else case["error"] / max(case["order"], 1e-12))


def worst_of(cases: list[dict[str, Any]]) -> dict[str, float]:
    return {dtype: max((off(case) for case in cases if case["dtype"] == dtype), default=0.0) for dtype in BARS}


def keep(cases: list[dict[str, Any]]) -> None:
    document = {
        "command": "nox -s equality",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "num_steps": NUM_STEPS,
        "bars": BARS,
        "worst": worst_of(cases),
        "cases": cases,
    }
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(document, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    again = arguments == ["again"] and KEPT.exists()
    cases: list[dict[str, Any]] = json.loads(KEPT.read_text())["cases"] if again else []
    for num_ranks, dtype, model in JOBS:
        if any((case["ranks"], case["dtype"], case["model"]) == (num_ranks, dtype, model) for case in cases):
            continue
        begun_s = time.monotonic()
        cases += measure(num_ranks, dtype, model)
        keep(cases)
        sys.stderr.write(f"{model}, {dtype}, {num_ranks} ranks: {time.monotonic() - begun_s:.0f} s\n")
    worst = worst_of(cases)
    sys.stdout.write(f"{len(cases)} cases, worst {worst}, bars {BARS}\n")
    return int(any(worst[dtype] > bar for dtype, bar in BARS.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
