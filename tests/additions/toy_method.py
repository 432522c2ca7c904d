"""A search method of one module: the first plans of the grid."""

from __future__ import annotations

from itertools import islice

from autotune.search.baselines import DefaultDdp
from autotune.search.methods import METHODS, SearchMethod
from autotune.search.tuner import ByTrials
from autotune.space.space import Proposal
from autotune.workloads.split import even


class FirstPlans(ByTrials):
    name, is_lossless = "first", True

    def __init__(self, problem):
        self._default, space = DefaultDdp(problem), problem.space(allow_lossy=False)
        samples = even(problem.global_batch, problem.limits)
        self._plans = [space.with_knobs(samples, knobs) for knobs in islice(space.grid(), 3)]

    def propose(self, records):
        measured = {record.plan for record in records}
        plans = (Proposal(plan=plan) for plan in self._plans if plan not in measured)
        return self._default.propose(records) or next(plans, None)

    def tell(self, record):
        """Its list is fixed."""


def tune(problem, _options, _storage, _simulator):
    return FirstPlans(problem)


def predict(asked):
    plans = [asked.space.with_knobs(asked.start, knobs) for knobs in islice(asked.space.grid(), asked.evaluations)]
    return sorted(((asked.judge(plan), plan) for plan in plans), key=lambda entry: entry[0])


METHODS.register(
    SearchMethod(
        name="first",
        text="the first plans of the grid",
        measured_by="tests.additions.toy_method:tune",
        predicted_by="tests.additions.toy_method:predict",
    )
)
