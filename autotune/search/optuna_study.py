"""The Optuna study: rank 0 asks, the job measures, rank 0 tells. The only door to Optuna.

Our records are the truth and Optuna's SQLite file follows them: on start every record that Optuna has not heard of is
told (a trial measured but not told is told, never rerun), what it still believes to be running is closed and queued
again, and a lost file is rebuilt. A point whose plan has been measured already is answered from the record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from autotune.results.store.record import TrialRecord, TrialState
from autotune.space.space import Knob, Proposal, Space
from autotune.workloads.errors import StoreError, unknown_name
from autotune.workloads.plan import Plan

SAMPLERS = ("tpe", "random")
_STARTUP_TRIALS = 5
_MAX_REPEATS = 50
"""Asked-for points in a row whose plans are all known: the space is used up."""


class Search:
    """Proposes plans and learns from records."""

    def __init__(
        self, path: Path | None, space: Space, records: Sequence[TrialRecord], *, sampler: str, seed: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._distributions = distributions(space)
        self._known = {record.plan.fingerprint(): record for record in records}
        self._study = _open_study(path)
        self._reconcile(records)
        self._study.sampler = make_sampler(sampler, seed + len(self._study.trials))
        self._asked: dict[int, optuna.Trial] = {}

    def enqueue(self, samples: Sequence[int], knobs: Mapping[str, Any] | None = None) -> None:
        """Propose this split and these knobs next; the sampler chooses the rest."""
        self._study.enqueue_trial(self._space.log_shares(samples) | dict(knobs or {}))

    def enqueue_plan(self, plan: Plan) -> None:
        """Propose this plan next."""
        self._study.enqueue_trial(self._space.point(plan))

    def proposals(self, count: int) -> list[dict[str, Any]]:
        """Points that the sampler would try now, given all trials so far; nothing is asked of anybody."""
        study = optuna.create_study(direction="minimize", sampler=self._study.sampler)
        study.add_trials([trial for trial in self._study.trials if trial.state.is_finished()])
        return [dict(study.ask(self._distributions).params) for _ in range(count)]

    def ask(self) -> Proposal | None:
        """The next plan that has not been measured yet; None when the space seems used up."""
        for _ in range(_MAX_REPEATS):
            trial = self._study.ask(self._distributions)
            plan = self._space.plan(trial.params)
            known = self._known.get(plan.fingerprint())
            if known is None:
                self._asked[trial.number] = trial
                return Proposal(number=trial.number, params=dict(trial.params), plan=plan)
            self._tell(trial, known)
        return None

    def tell(self, record: TrialRecord) -> None:
        """A proposal has been measured (or has failed)."""
        assert record.search_number is not None
        self._known[record.plan.fingerprint()] = record
        self._tell(self._asked.pop(record.search_number), record)

    def _tell(self, trial: optuna.Trial, record: TrialRecord) -> None:
        trial.set_user_attr("record", record.number)
        if not trial.constraints:  # set already if the job was killed between this line and the next
            trial.set_constraint("memory", _memory_excess(record))
        state, value = _optuna_outcome(record)
        self._study.tell(trial, value, state=state)

    def _reconcile(self, records: Sequence[TrialRecord]) -> None:
        heard = {trial.user_attrs.get("record") for trial in self._study.trials if trial.state.is_finished()}
        missing = [record for record in records if record.search_number is not None and record.number not in heard]
        running = {trial.number: trial for trial in self._study.trials if trial.state == OptunaState.RUNNING}
        for record in missing:
            trial = running.get(record.search_number if record.search_number is not None else -1)
            if trial is not None and trial.params == record.params:
                del running[trial.number]
                self._tell(optuna.Trial(self._study, trial._trial_id), record)
            else:
                self._study.add_trial(self._as_finished(record))
        for trial in running.values():
            self._study.tell(trial.number, state=OptunaState.FAIL)
            self._study.enqueue_trial(trial.params, skip_if_exists=False)

    def _as_finished(self, record: TrialRecord) -> optuna.trial.FrozenTrial:
        state, value = _optuna_outcome(record)
        return create_trial(
            state=state,
            value=value,
            params=record.params,
            distributions=self._distributions,
            user_attrs={"record": record.number},
            constraints={"memory": _memory_excess(record)},
        )


def _optuna_outcome(record: TrialRecord) -> tuple[OptunaState, float | None]:
    if record.state is TrialState.COMPLETE:
        return OptunaState.COMPLETE, record.step_s
    if record.state is TrialState.FAILED:
        return OptunaState.FAIL, None
    return OptunaState.PRUNED, None


def _memory_excess(record: TrialRecord) -> float:
    """Optuna's constraint: at most zero where the plan fits."""
    return 1.0 if record.state is TrialState.INFEASIBLE else -1.0


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words."""
    return {knob.name: _distribution(knob) for knob in space.knobs()}


def _distribution(knob: Knob) -> BaseDistribution:
    if knob.choices:
        return CategoricalDistribution(knob.choices)
    return IntDistribution(int(knob.low), int(knob.high)) if knob.whole else FloatDistribution(knob.low, knob.high)


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """A sampler by name."""
    makers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=_STARTUP_TRIALS),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    if name not in makers:
        raise unknown_name("sampler", name, makers)
    return makers[name]()


def _open_study(path: Path | None) -> optuna.Study:
    """Rank 0 is the only writer; write-ahead logging keeps readers such as dashboards out of its way. No path: in memory."""
    if path is None:
        return optuna.create_study(direction="minimize")
    try:
        with sqlite3.connect(path, timeout=10) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 10}})
        return optuna.create_study(study_name="sweep", storage=storage, direction="minimize", load_if_exists=True)
    except Exception as error:  # sqlite3, SQLAlchemy and Optuna each raise their own
        raise StoreError(
            f"cannot open the search storage {str(path)!r} ({str(error).splitlines()[0]}): delete that file, "
            "it is rebuilt from records.jsonl"
        ) from error
