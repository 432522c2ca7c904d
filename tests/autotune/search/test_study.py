"""The search on a real SQLite file: it asks, learns, never asks twice, and survives a kill at any point."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from autotune.search.study import Proposal, Search
from autotune.space import Space
from results.record import Role, TrialRecord, TrialState
from tests.results import sample
from workloads.errors import SpecError, StoreError
from workloads.plan import BatchPlan, CommPlan, Plan
from workloads.split import bounds

SPACE = Space(
    global_batch=64,
    limits=bounds(2, 64),
    reference=(1.0, 0.5),
    transports=("gloo", "mpi"),
    codecs=("none",),
    max_bucket_log2=24,
)
TINY = Space(
    global_batch=4,
    limits=bounds(1, 4),
    reference=(1.0,),
    transports=("gloo", "mpi"),
    codecs=("none",),
    max_bucket_log2=17,
)
"""Four plans in all: two buckets, two transports."""


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "search.db"


@pytest.fixture(autouse=True)
def quiet_optuna() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(level)


def open_search(
    db: Path, records: Sequence[TrialRecord] = (), *, space: Space = SPACE, sampler: str = "tpe", seed: int = 0
) -> Search:
    return Search(db, space, records, sampler=sampler, seed=seed)


def cost(plan: Plan) -> float:
    """A made-up landscape: best at 40/24 and buckets of 1 MiB."""
    return 1.0 + abs(plan.batch.samples[0] - 40) / 10 + abs(plan.comm.bucket_bytes.bit_length() - 21) / 10


def measured(number: int, proposal: Proposal, state: TrialState = TrialState.COMPLETE) -> TrialRecord:
    return TrialRecord(
        number=number,
        role=Role.SEARCH,
        state=state,
        plan=proposal.plan,
        params=proposal.params,
        search_number=proposal.number,
        steps_s=(cost(proposal.plan),) if state is TrialState.COMPLETE else (),
        reason="" if state is TrialState.COMPLETE else "because",
    )


def ask(search: Search) -> Proposal:
    proposal = search.ask()
    assert proposal is not None
    return proposal


def go_on(search: Search, records: list[TrialRecord], count: int) -> list[TrialRecord]:
    """Ask, measure, tell, `count` times; the records that are new."""
    for _ in range(count):
        records.append(measured(len(records), ask(search)))
        search.tell(records[-1])
    return records[-count:]


def trials(db: Path) -> list[optuna.trial.FrozenTrial]:
    """What Optuna's file holds, read by somebody else."""
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{db}").trials


def states(db: Path) -> list[OptunaState]:
    return [trial.state for trial in trials(db)]


# --- ask and tell ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_what_is_told_is_in_optunas_file_with_its_score_and_its_record(db: Path, sampler: str) -> None:
    search, records = open_search(db, sampler=sampler), []
    go_on(search, records, 8)
    kept = trials(db)
    assert [trial.state for trial in kept] == [OptunaState.COMPLETE] * 8
    assert [trial.value for trial in kept] == [record.step_s for record in records]
    assert [trial.user_attrs["record"] for trial in kept] == list(range(8))
    assert [trial.params for trial in kept] == [record.params for record in records]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_every_proposal_is_the_plan_of_its_point_and_can_run(db: Path, sampler: str) -> None:
    search, records = open_search(db, sampler=sampler), []
    for record in go_on(search, records, 8):
        record.plan.validate(num_ranks=2, global_batch=64)
        assert SPACE.plan(record.params) == record.plan


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_measured_plan_is_never_proposed_again(db: Path, sampler: str) -> None:
    search, records = open_search(db, sampler=sampler), []
    go_on(search, records, 25)
    assert len({record.plan.fingerprint() for record in records}) == 25


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_space_that_is_used_up_ends_the_search(db: Path, sampler: str) -> None:
    search, records = open_search(db, space=TINY, sampler=sampler), []
    go_on(search, records, 4)
    assert search.ask() is None
    assert OptunaState.RUNNING not in states(db)


def test_a_point_whose_plan_is_known_is_answered_from_its_record(db: Path) -> None:
    """Different tilts, same whole samples: Optuna hears the score without anybody measuring again."""
    search, records = open_search(db, space=TINY), []
    go_on(search, records, 4)
    search.ask()
    by_plan = {record.plan.fingerprint(): record for record in records}
    for trial in trials(db)[4:]:
        known = by_plan[TINY.plan(trial.params).fingerprint()]
        assert (trial.value, trial.user_attrs["record"]) == (known.step_s, known.number)


def test_the_same_seed_proposes_the_same_plans(tmp_path: Path) -> None:
    runs = [go_on(open_search(tmp_path / f"{name}.db", seed=3), [], 7) for name in "ab"]
    assert [record.plan for record in runs[0]] == [record.plan for record in runs[1]]


def test_another_seed_proposes_other_plans(tmp_path: Path) -> None:
    runs = [go_on(open_search(tmp_path / f"{seed}.db", seed=seed), [], 3) for seed in (0, 100)]
    assert [record.plan for record in runs[0]] != [record.plan for record in runs[1]]


def test_guided_search_ends_nearer_to_the_best_than_its_own_start(db: Path) -> None:
    records = go_on(open_search(db), [], 30)
    assert min(cost(record.plan) for record in records[5:]) < min(cost(record.plan) for record in records[:5])


def test_an_unknown_sampler_suggests_one(db: Path) -> None:
    with pytest.raises(SpecError, match="did you mean 'random'"):
        open_search(db, sampler="randem")


# --- queued plans ------------------------------------------------------------------------------------------------------


def wanted(first: int = 45) -> Plan:
    return Plan(batch=BatchPlan(samples=(first, 64 - first)), comm=CommPlan(bucket_bytes=2**20))


def test_a_queued_plan_is_proposed_next(db: Path) -> None:
    search = open_search(db)
    search.enqueue(wanted())
    assert ask(search).plan == wanted()


def test_a_plan_queued_twice_is_proposed_once(db: Path) -> None:
    search, records = open_search(db), []
    search.enqueue(wanted())
    search.enqueue(wanted())
    go_on(search, records, 4)
    assert [record.plan for record in records].count(wanted()) == 1
    assert OptunaState.WAITING not in states(db)


def test_a_plan_that_was_measured_is_not_queued(db: Path) -> None:
    search, records = open_search(db), []
    search.enqueue(wanted())
    go_on(search, records, 1)
    search.enqueue(wanted())
    assert OptunaState.WAITING not in states(db)


# --- infeasible and failed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "optunas", "feasible"),
    [
        (TrialState.INFEASIBLE, OptunaState.PRUNED, False),
        (TrialState.PRUNED, OptunaState.PRUNED, True),
        (TrialState.FAILED, OptunaState.FAIL, True),
        (TrialState.COMPLETE, OptunaState.COMPLETE, True),
    ],
)
@pytest.mark.parametrize("rebuilt", [False, True], ids=["told", "rebuilt"])
def test_optuna_hears_how_a_trial_ended(
    db: Path, state: TrialState, optunas: OptunaState, feasible: bool, rebuilt: bool
) -> None:
    search = open_search(db)
    record = measured(0, ask(search), state)
    if rebuilt:
        db = db.with_name("another.db")
        open_search(db, [record])
    else:
        search.tell(record)
    (trial,) = trials(db)
    assert trial.state == optunas
    assert trial.user_attrs["record"] == 0
    constraints = list(trial.constraints.values())
    assert [value <= 0 for value in constraints] == [feasible]


@pytest.mark.parametrize("state", [TrialState.INFEASIBLE, TrialState.FAILED])
def test_a_plan_that_could_not_run_is_not_proposed_again(db: Path, state: TrialState) -> None:
    search, records = open_search(db, space=TINY), []
    records.append(measured(0, ask(search), state))
    search.tell(records[0])
    go_on(search, records, 3)
    assert len({record.plan.fingerprint() for record in records}) == 4
    assert search.ask() is None


def test_the_search_goes_on_where_nothing_but_failures_is_known(db: Path) -> None:
    search = open_search(db)
    seen = []
    for number in range(8):
        seen.append(measured(number, ask(search), TrialState.INFEASIBLE))
        search.tell(seen[-1])
    assert len({record.plan.fingerprint() for record in seen}) == 8


# --- after a kill ------------------------------------------------------------------------------------------------------


def test_a_trial_measured_but_not_told_is_told_on_reopen_and_not_rerun(db: Path) -> None:
    """Killed between the record and the telling: Optuna believes that the trial runs."""
    search, records = open_search(db), []
    go_on(search, records, 2)
    records.append(measured(2, ask(search)))
    del search
    assert states(db) == [OptunaState.COMPLETE, OptunaState.COMPLETE, OptunaState.RUNNING]

    again = open_search(db, records)
    assert states(db) == [OptunaState.COMPLETE] * 3
    assert trials(db)[2].value == records[2].step_s
    assert trials(db)[2].user_attrs["record"] == 2
    assert ask(again).plan.fingerprint() not in {record.plan.fingerprint() for record in records}


@pytest.mark.parametrize("state", [TrialState.INFEASIBLE, TrialState.FAILED])
def test_a_failure_recorded_but_not_told_is_told_on_reopen(db: Path, state: TrialState) -> None:
    search = open_search(db)
    record = measured(0, ask(search), state)
    del search
    open_search(db, [record])
    (trial,) = trials(db)
    assert trial.state.is_finished()
    assert trial.user_attrs["record"] == 0


def test_a_trial_that_was_running_without_a_record_is_closed_and_comes_up_again(db: Path) -> None:
    """Killed while measuring: nothing is known about the plan, so it is the first to be measured."""
    search, records = open_search(db), []
    go_on(search, records, 2)
    lost = ask(search)
    del search

    again = open_search(db, records)
    assert states(db) == [OptunaState.COMPLETE, OptunaState.COMPLETE, OptunaState.FAIL, OptunaState.WAITING]
    proposal = ask(again)
    assert (proposal.params, proposal.plan) == (lost.params, lost.plan)
    assert proposal.number != lost.number


def test_killed_again_and_again_nothing_is_lost_and_nothing_is_measured_twice(db: Path) -> None:
    """Alternately killed before and after the record, thirty times over; then Optuna knows every record once."""
    records: list[TrialRecord] = []
    for turn in range(30):
        search = open_search(db, records)
        proposal = ask(search)
        if turn % 3 == 0:
            continue  # killed while measuring
        records.append(measured(len(records), proposal))
        if turn % 3 == 1:
            continue  # killed before telling
        search.tell(records[-1])
    open_search(db, records)
    assert OptunaState.RUNNING not in states(db)
    assert len({record.plan.fingerprint() for record in records}) == len(records) == 20
    told = [trial.user_attrs["record"] for trial in trials(db) if trial.state == OptunaState.COMPLETE]
    assert sorted(told) == [record.number for record in records]


def test_reopening_after_a_clean_end_changes_nothing(db: Path) -> None:
    search, records = open_search(db), []
    go_on(search, records, 4)
    before = [(trial.number, trial.state, trial.value) for trial in trials(db)]
    open_search(db, records)
    assert [(trial.number, trial.state, trial.value) for trial in trials(db)] == before


def test_records_of_other_roles_are_known_but_not_told(db: Path) -> None:
    default = sample.refused(0, Role.DEFAULT, wanted(), TrialState.COMPLETE, "")
    search = open_search(db, [default])
    assert trials(db) == []
    search.enqueue(wanted())
    assert trials(db) == []


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_after_a_resume_the_start_up_points_are_new_ones(tmp_path: Path, sampler: str) -> None:
    """A fixed seed would replay the points of the first run, all known, and the search would learn nothing new from them."""
    db, records = tmp_path / "search.db", []
    go_on(open_search(db, sampler=sampler), records, 3)
    fresh = go_on(open_search(tmp_path / "fresh.db", sampler=sampler), [], 3)
    resumed = open_search(db, records, sampler=sampler)
    before = len(trials(db))
    after = go_on(resumed, records, 3)
    assert len(trials(db)) == before + 3  # nothing was answered from a record: no point was a replay
    assert not {str(record.params) for record in after} & {str(record.params) for record in fresh}


# --- a lost or broken file ---------------------------------------------------------------------------------------------


def test_a_deleted_file_is_rebuilt_from_the_records(db: Path) -> None:
    search, records = open_search(db), []
    go_on(search, records, 5)
    records.append(measured(5, ask(search), TrialState.INFEASIBLE))
    search.tell(records[-1])
    before = sorted((trial.user_attrs["record"], trial.state, trial.value, str(trial.params)) for trial in trials(db))
    del search
    for path in db.parent.iterdir():
        path.unlink()

    again = open_search(db, records)
    after = sorted((trial.user_attrs["record"], trial.state, trial.value, str(trial.params)) for trial in trials(db))
    assert after == before
    assert ask(again).plan.fingerprint() not in {record.plan.fingerprint() for record in records}


def test_deleting_the_file_alone_is_enough_also_after_a_kill(db: Path, tmp_path: Path) -> None:
    """A killed job leaves SQLite's write-ahead log behind; the error message asks to delete search.db only."""
    search, records = open_search(db), []
    go_on(search, records, 3)
    ask(search)
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in tmp_path.glob("search.db*"):
        shutil.copy(path, killed / path.name)
    assert (killed / "search.db-wal").exists()
    (killed / "search.db").unlink()

    open_search(killed / "search.db", records)
    assert states(killed / "search.db") == [OptunaState.COMPLETE] * 3


@pytest.mark.parametrize(
    "content", [b"this is no database at all, but text" * 200, b"SQLite format 3\x00" + b"\xff" * 8000]
)
def test_a_corrupt_file_is_an_error_that_says_what_to_do(db: Path, content: bytes) -> None:
    db.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        open_search(db)
    message = str(caught.value)
    assert message.startswith(f"cannot open the search storage {str(db)!r} (")
    assert message.endswith("delete that file, it is rebuilt from records.jsonl")
    assert caught.value.exit_code == 2


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open the search storage"):
        open_search(tmp_path / "nowhere" / "search.db")


def test_an_older_record_without_some_point_does_not_stop_the_search(db: Path) -> None:
    """Told under another number than Optuna's own: the record counts, the trial that runs is closed."""
    search = open_search(db)
    record = measured(0, ask(search))
    del search
    moved = dataclasses.replace(record, search_number=17)
    open_search(db, [moved])
    found: list[Any] = [(trial.state, trial.user_attrs.get("record")) for trial in trials(db)]
    assert (OptunaState.COMPLETE, 0) in found
    assert (OptunaState.RUNNING, None) not in found
