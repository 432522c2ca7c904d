"""What was decided while training: the plan from some step on, what kind of change called for it, and why."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.plan import Plan

COMPUTE, NETWORK, REGRET = "compute", "network", "regret"
"""What changed: a device, a link; or nothing but our mind, because the last change did not bring what was promised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """From step `step` on, training goes by `plan`."""

    step: int
    plan: Plan
    kind: str
    ranks: tuple[int, ...] = ()
    """Whose device or link is not what it was, where that can be told."""
    predicted_gain: float = 0.0
    """Share of the step time that it is expected to save."""
    reason: str
