"""What was decided while training: the plan from some step on, what kind of change called for it, and why."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.results.text.numbers import plan_summary
from autotune.workloads.plan import Plan

COMPUTE, NETWORK, REGRET, LOOK = "compute", "network", "regret", "look"
"""What changed: a device, a link; or nothing but our mind, because the last change did not bring what was promised. "look":
something about the network, and its links are timed before the next step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """From step `step` on, training goes by `plan`."""

    step: int
    plan: Plan
    kind: str
    ranks: tuple[int, ...] = ()
    """The ranks whose device or link has changed, where that can be determined."""
    predicted_gain: float = 0.0
    """Share of the step time that it is expected to save."""
    reason: str
    switches: bool = True
    """Whether the plan is another one than before; if not, this is an observation without a change."""
    at_s: float = 0.0
    """When it was taken, by rank 0's performance counter, as in a run's timeline."""


def in_words(decision: Decision) -> str:
    """What was decided, and why."""
    if decision.kind == LOOK:
        return f"{decision.kind}: {decision.reason}; timing the links"
    if not decision.switches:
        return f"{decision.kind}: {decision.reason}"
    gain = f", expected to save {100 * decision.predicted_gain:.0f} %" if decision.predicted_gain > 0 else ""
    return f"{decision.kind}: {decision.reason}; now {plan_summary(decision.plan)}{gain}"
