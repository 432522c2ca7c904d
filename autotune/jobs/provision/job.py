"""Provision: read the problem, assign layers to types by one method or all, or draw the front; nothing here needs MPI."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.jobs.question import Question
from autotune.provision.answer import Answer, answer, answer_data, comparison_data, infeasible, plan_data
from autotune.provision.front import Front, fastest_within, front
from autotune.provision.judge import Asked
from autotune.provision.methods import METHODS
from autotune.provision.prices import PriceList, read_prices
from autotune.provision.problem import Problem
from autotune.provision.problem_file import Prices, read_problem
from autotune.workloads.errors import InfeasiblePlanError, SpecError, unknown_name

ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvisionJob:
    """What `autotune provision` is asked."""

    file: Path | None = None
    question: Question | None = None
    """Workload and cluster, in place of a file."""
    examples: float | None = None
    min_throughput: float | None = None
    """In place of the file's."""
    limits: Mapping[str, int] = field(default_factory=dict)
    prices: Path | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    """Of the price list, by type."""
    spot: bool = False
    region: str | None = None
    method: str = "exact"
    budget: float | None = None
    front_step: float | None = None
    time_s: float = 60.0
    seed: int = 0


def provision(job: ProvisionJob) -> dict[str, Any]:
    """The document that is shown or written."""
    check(job)
    problem = load_problem(job)
    asked = Asked(problem=problem, seed=job.seed, time_s=job.time_s)
    if job.front_step is not None:
        return front_document(asked, job.front_step, job.budget)
    if job.budget is not None:
        return budget_document(asked, job.budget)
    if job.method == ALL:
        return comparison_document(asked)
    found = answer(asked, job.method)
    if found.plan is None:
        raise infeasible(asked, found)
    return answer_data(problem, found)


def check(job: ProvisionJob) -> None:
    """Options that need each other, and their ranges."""
    if (job.file is None) == (job.question is None):
        raise SpecError("provision takes a FILE.json, or --workload with --cluster: give one of the two")
    if job.method != ALL and job.method not in METHODS:
        raise unknown_name("provisioning method", job.method, [*METHODS, ALL])
    if job.method != "exact" and (job.budget is not None or job.front_step is not None):
        raise SpecError(
            f"--method {job.method} with --budget or --front: these use the exact method, leave --method out"
        )
    if job.prices is None and (job.spot or job.region is not None or job.entries):
        raise SpecError("--spot, --region and --price-of choose from a price list: name one with --prices FILE")
    for name, value in (("--budget", job.budget), ("--time", job.time_s), ("--examples", job.examples)):
        if value is not None and not 0 < value <= 1e12:
            raise SpecError(f"{name} is {value:g}: it must be above 0, at most 1e12")
    for name, value in (("--min-throughput", job.min_throughput), ("--front", job.front_step)):
        if value is not None and not 0 <= value <= 1e12:
            raise SpecError(f"{name} is {value:g}: it must be a number from 0, at most 1e12")


def load_problem(job: ProvisionJob) -> Problem:
    """From the file, or from the workload; with prices of the list where one is named."""
    listed = None if job.prices is None else read_prices(job.prices, spot=job.spot, region=job.region)
    prices = None if listed is None else _lookup(listed, job.entries)
    if job.question is not None:
        from autotune.jobs.provision.from_workload import Wanted, workload_problem  # noqa: PLC0415 - loads torch

        floor = job.min_throughput or 0.0
        wanted = Wanted(examples=job.examples or 1e6, min_throughput=floor, limits=job.limits)
        problem = workload_problem(job.question, wanted, prices)
    else:
        assert job.file is not None
        problem = _changed(read_problem(job.file, prices), job)
    for name in job.entries:
        if name not in problem.names:
            raise unknown_name("type in --price-of:", name, problem.names)
    stated = {} if listed is None else {"prices": f"{listed.name}: {listed.stated}"}
    return dataclasses.replace(problem, source={**problem.source, **stated})


def _changed(problem: Problem, job: ProvisionJob) -> Problem:
    """A file's problem with what the command line states instead."""
    for name in job.limits:
        if name not in problem.names:
            raise unknown_name("type in --limit:", name, problem.names)
    types = tuple(dataclasses.replace(one, limit=job.limits.get(one.name, one.limit)) for one in problem.types)
    return dataclasses.replace(
        problem,
        types=types,
        examples=problem.examples if job.examples is None else job.examples,
        min_throughput=problem.min_throughput if job.min_throughput is None else job.min_throughput,
    )


def _lookup(listed: PriceList, entries: Mapping[str, str]) -> Prices:
    """Prices by type: under the entry that is named for it, else under its own name if the list has it."""

    def price(name: str) -> float | None:
        found = listed.price(entries.get(name, name))
        if found is None and name in entries:
            raise listed.unknown(entries[name])
        return found

    return price


def comparison_document(asked: Asked) -> dict[str, Any]:
    """All methods that can run, with the exact one's answer on top."""
    answers = [answer(asked, name) for name in METHODS if _can_run(name, asked.problem)]
    if answers[0].plan is None:
        raise infeasible(asked, answers[0])
    return answer_data(asked.problem, answers[0]) | {"methods": comparison_data(asked.problem, answers)}


def _can_run(name: str, problem: Problem) -> bool:
    """Brute force is left out where it would take minutes."""
    return name != "brute-force" or len(problem.types) ** problem.num_layers <= 59_049


def budget_document(asked: Asked, budget: float) -> dict[str, Any]:
    """The fastest plan within a budget for all examples."""
    point = fastest_within(asked.problem, budget, time_s=asked.time_s)
    if point is None:
        least = answer(asked, "exact")
        if least.plan is None:
            raise infeasible(asked, least)
        raise InfeasiblePlanError(
            f"--budget is {budget:g}, but the cheapest plan for {asked.problem.examples:g} examples at the floor of "
            f"{asked.problem.min_throughput:g} examples/s costs {least.plan.cost:.6g}, "
            f"{100 * (least.plan.cost / budget - 1):.3g} % more: raise the budget, or lower the floor"
        )
    found = Answer(method="exact", plan=point.plan, proven=point.proven, lower_bound=None, evaluations=0, seconds=0.0)
    return answer_data(asked.problem, found) | {"budget": budget}


def front_document(asked: Asked, step: float, budget: float | None) -> dict[str, Any]:
    """The front as rows, each with its plan."""
    found: Front = front(asked.problem, step=step, budget=budget, time_s=asked.time_s)
    if not found.points:
        least = answer(asked, "exact")
        if least.plan is None:
            raise infeasible(asked, least)
        budget_document(asked, budget or least.plan.cost)
    rows = [
        plan_data(asked.problem, point.plan) | {"proven": point.proven, "price_per_hour": point.plan.price_per_hour}
        for point in found.points
    ]
    return {"front": rows, "step": step, "end": found.end, "examples": asked.problem.examples, "method": "exact"}
