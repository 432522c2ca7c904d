"""The two methods that prove their answer: branch and bound, and every assignment."""

from __future__ import annotations

import itertools

import numpy as np

from autotune.provision.assignment import best_rate
from autotune.provision.exact import cheapest
from autotune.provision.judge import Asked, Chosen
from autotune.workloads.errors import SpecError

MAX_ASSIGNMENTS = 1_000_000


def exact(asked: Asked) -> Chosen:
    """As `--method exact`."""
    found = cheapest(asked.problem, time_s=asked.time_s)
    return Chosen(assignment=found.assignment, evaluations=found.num_ranges, bound=found.bound, proven=found.proven)


def brute_force(asked: Asked) -> Chosen:
    """As `--method brute-force`: the units of each assignment are the best for it."""
    problem = asked.problem
    types, layers = len(problem.types), problem.num_layers
    if types**layers > MAX_ASSIGNMENTS:
        raise SpecError(
            f"--method brute-force would try {types}^{layers} assignments, at most {MAX_ASSIGNMENTS:,} are allowed: "
            "use --method exact, which proves its answer as well"
        )
    best, least = None, float("inf")
    for kinds in itertools.product(range(types), repeat=layers):
        assignment = np.array(kinds, np.int64)
        rate, _ = best_rate(problem, assignment)
        if rate < least:
            best, least = assignment, rate
    return Chosen(assignment=best, evaluations=types**layers, bound=least, proven=True)
