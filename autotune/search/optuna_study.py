"""The Optuna study: rank 0 asks, the job measures, rank 0 tells.

Our records are the truth and Optuna's SQLite file follows them. On start every record that the file lacks is added (a trial
that was measured is never rerun), a trial that the file has as running is closed and queued again, and a lost file is rebuilt.
A point whose plan has been measured already is answered from the record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from autotune.results.store.record import TrialRecord, TrialState
from autotune.space.knob import Values
from autotune.space.space import Proposal, Space
from autotune.workloads.errors import StoreError, unknown_name

SAMPLERS = ("tpe", "random")
_STARTUP_TRIALS = 5
_MAX_REPEATS = 50
"""Asked-for points in a row whose plans are all known: the space is used up."""


class SearchStudy:
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

    def proposals(self, count: int) -> list[dict[str, Any]]:
        """Points that the sampler would try now, given all trials so far; no trial is started."""
        study = optuna.create_study(direction="minimize", sampler=self._study.sampler)
        study.add_trials([trial for trial in self._study.trials if trial.state.is_finished()])
        return [dict(study.ask(self._distributions).params) for _ in range(count)]

    def ask(self, samples: Sequence[int] | None = None) -> Proposal | None:
        """The sampler's next plan that has not been measured yet, with this split if given; None when the space seems used up."""
        for _ in range(_MAX_REPEATS):
            if samples is not None:
                self._study.enqueue_trial(self._space.split_point(samples))
            trial = self._study.ask(self._distributions)
            plan = self._space.plan(trial.params)
            known = self._known.get(plan.fingerprint())
            if known is None:
                self._asked[trial.number] = trial
                return Proposal(number=trial.number, params=dict(trial.params), plan=plan)
            self._tell(trial, known)
            samples = None
        return None

    def tell(self, record: TrialRecord) -> None:
        """A trial has ended: one that the sampler proposed, or one that it learns from all the same."""
        self._known[record.plan.fingerprint()] = record
        if record.search_number is not None:
            self._tell(self._asked.pop(record.search_number), record)
        elif (finished := self._as_finished(record)) is not None:
            self._study.add_trial(finished)

    def _tell(self, trial: optuna.Trial, record: TrialRecord) -> None:
        trial.set_user_attr("record", record.number)
        if not trial.constraints:  # set already if the job was killed between this line and the next
            trial.set_constraint("memory", _memory_excess(record))
        state, value = _optuna_outcome(record)
        self._study.tell(trial, value, state=state)

    def _reconcile(self, records: Sequence[TrialRecord]) -> None:
        told = {trial.user_attrs.get("record") for trial in self._study.trials if trial.state.is_finished()}
        missing = [record for record in records if record.params and record.number not in told]
        running = {trial.number: trial for trial in self._study.trials if trial.state == OptunaState.RUNNING}
        for record in missing:
            trial = running.get(record.search_number if record.search_number is not None else -1)
            if trial is not None and trial.params == record.params:
                del running[trial.number]
                self._tell(optuna.Trial(self._study, trial._trial_id), record)
            elif (finished := self._as_finished(record)) is not None:
                self._study.add_trial(finished)
        for trial in running.values():
            self._study.tell(trial.number, state=OptunaState.FAIL)
            self._study.enqueue_trial(trial.params, skip_if_exists=False)

    def _as_finished(self, record: TrialRecord) -> optuna.trial.FrozenTrial | None:
        """As a trial of the study; None where its coordinates lie outside the space."""
        state, value = _optuna_outcome(record)
        if not all(
            name in record.params and distribution._contains(distribution.to_internal_repr(record.params[name]))
            for name, distribution in self._distributions.items()
        ):
            return None
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
    """The coordinates of the space, for Optuna."""
    return {name: _distribution(values) for name, values in space.coordinates().items()}


def _distribution(values: Values) -> BaseDistribution:
    if values.choices:
        return CategoricalDistribution(values.choices)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high))
    return FloatDistribution(values.low, values.high)


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
    # The file is opened here: in a URL, `?` and `%` of a folder's name would mean something else.
    connect = partial(sqlite3.connect, path, timeout=10, check_same_thread=False)
    try:
        with connect() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        storage = optuna.storages.RDBStorage("sqlite:///search.db", engine_kwargs={"creator": connect})
        return optuna.create_study(study_name="sweep", storage=storage, direction="minimize", load_if_exists=True)
    except Exception as error:  # sqlite3, SQLAlchemy and Optuna each raise their own
        raise StoreError(
            f"cannot open the search storage {str(path)!r} ({str(error).splitlines()[0]}): delete that file, "
            "it is rebuilt from records.jsonl"
        ) from error
