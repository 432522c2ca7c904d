"""What a run of many loops found, as data and as text."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.loops.compare import LOW_PRECISION
from tests.loops.render import render
from tests.loops.verdict import Verdict
from tests.mpi.launch import ROOT


def summary_data(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """For results/published/loops."""
    equal = [verdict for verdict in verdicts if verdict.kind == "equal"]
    exact = [verdict for verdict in equal if not verdict.loop.has(*LOW_PRECISION)]
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "revision": _revision(),
        "seeds": [min(verdict.loop.seed for verdict in verdicts), max(verdict.loop.seed for verdict in verdicts)],
        "count": len(verdicts),
        "kinds": dict(Counter(verdict.kind for verdict in verdicts).most_common()),
        "worst_distance": max((verdict.distance for verdict in exact if not verdict.is_sensitive), default=0.0),
        "worst_distance_low_precision": max((v.distance for v in equal if v.loop.has(*LOW_PRECISION)), default=0.0),
        "sensitive": sum(verdict.is_sensitive for verdict in verdicts),
        "refusals": dict(Counter(verdict.reason for verdict in verdicts if verdict.kind == "refused").most_common()),
        "features": dict(Counter(name for verdict in verdicts for name in verdict.loop.features).most_common()),
        "loops": [
            {
                "seed": verdict.loop.seed,
                "ranks": verdict.loop.ranks,
                "kind": verdict.kind,
                "distance": verdict.distance,
                "tolerance": verdict.tolerance,
                "rounding": verdict.rounding,
            }
            for verdict in verdicts
        ],
    }


def summary_text(data: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    low = data["worst_distance_low_precision"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in data["kinds"].items())
    refusals = [f"  refused {count} times: {reason}" for reason, count in data["refusals"].items()]
    features = ", ".join(f"{name} {count}" for name, count in data["features"].items())
    return "\n".join(
        [
            f"{data['count']} loops: {kinds}",
            f"worst relative distance: {data['worst_distance']:.1e} in float64, {low:.1e} in bfloat16 and float16",
            f"sensitive to rounding: {data['sensitive']}",
            *refusals,
            f"features: {features}",
        ]
    )


def failure_text(verdict: Verdict) -> str:
    """How to see it again."""
    loop = verdict.loop
    return "\n".join(
        [
            f"--- seed {loop.seed} on {loop.ranks} ranks: {verdict.kind}",
            verdict.text.strip()[-3000:],
            f"plan: {loop.plan}",
            f"save the script as loop.py, then: mpirun -n {loop.ranks} python loop.py; python loop.py",
            "",
            render(loop),
        ]
    )


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
