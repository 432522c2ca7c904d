"""Assignments by a rule, as people choose them: what Paddle-HeterPS (arXiv 2111.10635) compares with, by our definition.

A type is a CPU type if its name says so ("cpu"); if none does, the cheapest type is. All others are accelerators. Where a rule leaves a choice
of type, the cheapest plan is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autotune.provision.assignment import arrays
from autotune.provision.compiled import stage_s
from autotune.provision.judge import Asked, Chosen, Judge
from autotune.provision.problem import Ints, Problem


def cpu_types(problem: Problem) -> list[int]:
    """The types that are CPUs."""
    named = [kind for kind, one in enumerate(problem.types) if "cpu" in one.name.lower()]
    return named or [min(range(len(problem.types)), key=lambda kind: problem.types[kind].price_per_hour)]


def accelerator_types(problem: Problem) -> list[int]:
    """The types that are not; of a problem with CPUs only, those."""
    cpus = cpu_types(problem)
    return [kind for kind in range(len(problem.types)) if kind not in cpus] or cpus


def cpu_only(asked: Asked) -> Chosen:
    """As `--method cpu-only`."""
    return _best(asked.problem, (np.full(asked.problem.num_layers, kind) for kind in cpu_types(asked.problem)))


def accelerator_only(asked: Asked) -> Chosen:
    """As `--method accelerator-only`."""
    return _best(asked.problem, (np.full(asked.problem.num_layers, kind) for kind in accelerator_types(asked.problem)))


def first_layer_cpu(asked: Asked) -> Chosen:
    """As `--method first-layer-cpu`: embeddings mostly come first."""
    problem = asked.problem
    rest = problem.num_layers - 1
    pairs = ((cpu, other) for cpu in cpu_types(problem) for other in accelerator_types(problem))
    return _best(problem, (np.array([cpu, *[other] * rest]) for cpu, other in pairs))


def greedy(asked: Asked) -> Chosen:
    """As `--method greedy`: price x time of each layer as a stage of its own, on one unit, as if the others did not exist."""
    problem = asked.problem
    compute, transfer, alpha, beta, price, _ = arrays(problem)
    chosen = [
        min(
            range(len(problem.types)),
            key=lambda kind: (
                price[kind] * stage_s(compute[layer, kind], transfer[layer, kind], alpha[kind], beta[kind], 1.0),
                stage_s(compute[layer, kind], transfer[layer, kind], alpha[kind], beta[kind], 1.0),
            ),
        )
        for layer in range(problem.num_layers)
    ]
    return _best(problem, [np.array(chosen)])


def _best(problem: Problem, assignments: Iterable[Ints]) -> Chosen:
    judge = Judge(problem)
    for assignment in assignments:
        judge(assignment.astype(np.int64))
    return judge.answer()
