"""The only module that imports OR-tools: makes models, and solves them on one thread within a time limit."""

from __future__ import annotations

import enum
from typing import Any


class Outcome(enum.Enum):
    """Outcomes of a solver."""

    OPTIMAL = "optimal"
    """Solved, and nothing is better (of a model without objective: solved)."""
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    """Proven."""
    UNKNOWN = "unknown"
    """The time ran out."""


class Solved:
    """The outcome, and the values if there are any."""

    def __init__(self, outcome: Outcome, solver: Any) -> None:
        self.outcome = outcome
        self._solver = solver

    @property
    def found(self) -> bool:
        return self.outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)

    @property
    def bound(self) -> int:
        """The proven lower bound of the objective."""
        return round(float(self._solver.best_objective_bound))

    def value(self, variable: Any) -> int:
        return int(self._solver.value(variable))


def load() -> None:
    """Import OR-tools, which takes up to a second, before a time limit starts."""
    from ortools.sat.python import cp_model  # noqa: F401, PLC0415


def new_model() -> Any:
    """An empty CP-SAT model."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - half a second, and only searches need it

    return cp_model.CpModel()


def solve(model: Any, time_s: float, *, seed: int = 0) -> Solved:
    """Solve on one thread: the same model gives the same answer, unless the time runs out."""
    from ortools.sat.python import cp_model  # noqa: PLC0415

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = max(time_s, 0.001)
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    outcomes = {
        cp_model.OPTIMAL: Outcome.OPTIMAL,
        cp_model.FEASIBLE: Outcome.FEASIBLE,
        cp_model.INFEASIBLE: Outcome.INFEASIBLE,
    }
    return Solved(outcomes.get(status, Outcome.UNKNOWN), solver)
