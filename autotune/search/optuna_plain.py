"""A plain Optuna study over torch DDP's knobs, as a user would write it: the control for what our guidance is worth."""

from __future__ import annotations

import optuna

from autotune.results.store.record import TrialRecord
from autotune.space.comm_knobs import MIN_BUCKET_LOG2
from autotune.space.space import Proposal, Space
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.split import proportional

_LEAST_SHARE = 0.1


class PlainStudy:
    """A share per rank and a bucket size; TPE with its defaults; the even split is tried first."""

    def __init__(self, space: Space, *, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=seed))
        even = {self._share(rank): 1.0 for rank in range(len(space.reference))}
        self._study.enqueue_trial(even | {"bucket_log2": space.max_bucket_log2})
        self._trial: optuna.Trial | None = None

    def ask(self) -> Proposal:
        trial = self._trial = self._study.ask()
        shares = [
            trial.suggest_float(self._share(rank), _LEAST_SHARE, 1.0) for rank in range(len(self._space.reference))
        ]
        bucket_log2 = trial.suggest_int("bucket_log2", MIN_BUCKET_LOG2, self._space.max_bucket_log2)
        plan = Plan(
            batch=BatchPlan(samples=proportional(shares, self._space.global_batch, self._space.limits)),
            comm=CommPlan(reducer="ddp", transport=self._space.transports[0], bucket_bytes=2**bucket_log2),
        )
        return Proposal(plan=plan, params=dict(trial.params), number=trial.number)

    def tell(self, record: TrialRecord) -> None:
        assert self._trial is not None
        if record.step_s is None:
            self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(self._trial, record.step_s)

    @staticmethod
    def _share(rank: int) -> str:
        return f"share.{rank}"
