"""Predictions are those that were recorded before the simulator was made faster: times, memory, and the spans of a timeline.

After a change of what a plan *means*, `python -m tests.autotune.simulate.test_recorded` records anew; look at the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.simulate.simulator import Simulator
from autotune.workloads.plan import Plan
from tests.autotune.simulate.plans_at_random import plans, simulators

RECORDED = Path(__file__).with_name("recorded_plans.json")
PLANS_EACH = 24


def figures(simulator: Simulator, plan: Plan) -> list[float]:
    """Seconds of a step; all starts and ends together; memory of all ranks; tasks; seconds of all spans."""
    simulated = simulator.simulate(plan)
    spans = simulator.timeline(plan, simulated).spans
    return [
        simulated.step_s,
        float(simulated.run.start_s.sum() + simulated.run.end_s.sum()),
        float(simulator.peak_memory_bytes(plan, simulated).sum()),
        float(simulated.run.peak_at_s.sum()),
        simulated.tasks.num_tasks,
        sum(span.end_s - span.start_s for span in spans),
    ]


def test_predictions_are_those_recorded():
    recorded = json.loads(RECORDED.read_text())
    for number, (name, simulator) in enumerate(simulators()):
        for plan, expected in zip(plans(simulator, PLANS_EACH, number), recorded[name], strict=True):
            assert figures(simulator, plan) == pytest.approx(expected, rel=1e-12), (name, plan)


def test_a_search_gets_the_step_of_the_full_simulation():
    """Exactly: `step_s` skips what only a timeline needs, and nothing else."""
    for number, (name, simulator) in enumerate(simulators()):
        for plan in plans(simulator, PLANS_EACH, number):
            assert simulator.step_s(plan) == simulator.simulate(plan).step_s, (name, plan)


def record() -> None:
    found = {
        name: [figures(simulator, plan) for plan in plans(simulator, PLANS_EACH, number)]
        for number, (name, simulator) in enumerate(simulators())
    }
    rows = {name: ",\n".join(map(json.dumps, listed)) for name, listed in found.items()}
    lines = [f"{json.dumps(name)}: [\n{listed}\n]" for name, listed in rows.items()]
    RECORDED.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    record()
