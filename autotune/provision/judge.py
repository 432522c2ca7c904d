"""What a method of provisioning is asked and answers, and the judge of assignments for those that try many."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from autotune.provision import compiled
from autotune.provision.assignment import arrays, best_rate
from autotune.provision.problem import Ints, Problem

_UNFIT = 1e3
"""An assignment beyond the limits counts as this many times its cost without limits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A problem, and what a method may spend on it."""

    problem: Problem
    seed: int = 0
    time_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a method answers."""

    assignment: Ints | None = field(repr=False)
    """None: it has found none that meets the floor within the limits."""
    evaluations: int
    bound: float | None = None
    """A lower bound of price x slowest stage of all plans, where the method has one."""
    proven: bool = False


class Judge:
    """The cost of assignments for methods that try many; remembers the best that meets floor and limits."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[bytes, float] = {}
        self.best: Ints | None = None
        self.least = math.inf
        self.evaluations = 0

    def __call__(self, assignment: Ints) -> float:
        """Price x slowest stage; beyond the limits a finite penalty that grows with the excess."""
        self.evaluations += 1
        key = assignment.tobytes()
        if key not in self._known:
            self._known[key] = self._rate(assignment)
        return self._known[key]

    def _rate(self, assignment: Ints) -> float:
        rate, _ = best_rate(self._problem, assignment)
        if rate < self.least:
            self.best, self.least = assignment.copy(), rate
        return rate if rate < math.inf else self.unfit * (1 + self._excess(assignment))

    @property
    def unfit(self) -> float:
        """Assignments of at least this value miss the floor or the limits."""
        return _UNFIT * self._worst

    @property
    def _worst(self) -> float:
        return self._problem.longest_stage_s * float(self._problem.tables.price.max()) + 1e-12

    def _excess(self, assignment: Ints) -> float:
        """How far the units that the floor needs are above the limits; a stage that cannot meet it counts as much more."""
        problem = self._problem
        count = problem.num_layers
        kinds, compute, transfer = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        tables, used, impossible = problem.tables, np.zeros(len(problem.types)), 0
        stages = compiled.stages_of(arrays(problem), assignment, kinds, compute, transfer)
        for kind, work, sent in zip(kinds[:stages], compute[:stages], transfer[:stages], strict=True):
            share = tables.alpha[kind], tables.beta[kind]
            units = compiled.units_for(work, sent, *share, 1e9, problem.slowest_s) if work < math.inf else 0.0
            used[kind] += units
            impossible += units == 0
        over = np.maximum(used - tables.limit, 0.0) / np.maximum(tables.limit, 1.0)
        return float(np.minimum(over, 1e3).sum()) + 100.0 * impossible

    def answer(self) -> Chosen:
        return Chosen(assignment=self.best, evaluations=self.evaluations)
