"""The search on a real SQLite file: it asks, learns, never asks twice, and survives a kill at any point."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.search import optuna_study as study
from autotune.search.optuna_study import Proposal, SearchStudy
from autotune.space.space import Space
from autotune.workloads.errors import SpecError, StoreError
from autotune.workloads.plan import Plan
from autotune.workloads.split import bounds
from tests.results import sample

NUM_KILLS = 9
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


@pytest.fixture(scope="module")
def empty_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study without trials: making the tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "search.db"
    open_search(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def db(tmp_path: Path, empty_db: Path) -> Path:
    shutil.copy(empty_db, tmp_path / "search.db")
    return tmp_path / "search.db"


@pytest.fixture(autouse=True)
def quick_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer repeats before a space counts as used up; and Optuna's log level is restored."""
    monkeypatch.setattr(study, "_MAX_REPEATS", 12)
    level = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(level)


def open_search(
    db: Path, records: Sequence[TrialRecord] = (), *, space: Space = SPACE, sampler: str = "tpe", seed: int = 0
) -> SearchStudy:
    return SearchStudy(db, space, records, sampler=sampler, seed=seed)


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


def ask(search: SearchStudy) -> Proposal:
    proposal = search.ask()
    assert proposal is not None
    return proposal


def go_on(search: SearchStudy, records: list[TrialRecord], count: int) -> list[TrialRecord]:
    """Ask, measure, tell, `count` times; the records that are new."""
    for _ in range(count):
        records.append(measured(len(records), ask(search)))
        search.tell(records[-1])
    return records[-count:]


def trials(search: SearchStudy) -> list[optuna.trial.FrozenTrial]:
    """What Optuna holds."""
    return search._study.trials


def states(search: SearchStudy) -> list[OptunaState]:
    return [trial.state for trial in trials(search)]


# --- ask and tell ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_proposals_can_run_and_what_is_stored_is_in_optunas_file_with_score_and_record(db: Path, sampler: str) -> None:
    search, records = open_search(db, sampler=sampler), []
    for record in go_on(search, records, 7):
        record.plan.validate(num_ranks=2, global_batch=64)
        assert SPACE.plan(record.params) == record.plan
    kept = optuna.load_study(study_name="sweep", storage=f"sqlite:///{db}").trials  # as another process reads it
    assert [trial.state for trial in kept] == [OptunaState.COMPLETE] * 7
    assert [trial.value for trial in kept] == [record.step_s for record in records]
    assert [trial.user_attrs["record"] for trial in kept] == list(range(7))
    assert [trial.params for trial in kept] == [record.params for record in records]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_measured_plan_is_never_proposed_again(db: Path, sampler: str) -> None:
    search, records = open_search(db, sampler=sampler), []
    go_on(search, records, 10)
    assert len({record.plan.fingerprint() for record in records}) == 10


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_space_that_is_used_up_ends_the_search(db: Path, sampler: str) -> None:
    search, records = open_search(db, space=TINY, sampler=sampler), []
    go_on(search, records, 4)
    assert search.ask() is None
    assert OptunaState.RUNNING not in states(search)


def test_a_point_whose_plan_is_known_is_answered_from_its_record(db: Path) -> None:
    """Different log share ratios, same whole samples: Optuna gets the score without another measurement."""
    search, records = open_search(db, space=TINY), []
    go_on(search, records, 4)
    search.ask()
    by_plan = {record.plan.fingerprint(): record for record in records}
    for trial in trials(search)[4:]:
        known = by_plan[TINY.plan(trial.params).fingerprint()]
        assert (trial.value, trial.user_attrs["record"]) == (known.step_s, known.number)


def test_the_same_seed_proposes_the_same_plans_in_a_new_file(db: Path, tmp_path: Path) -> None:
    runs = [go_on(open_search(path, seed=3), [], 6) for path in (db, tmp_path / "new.db")]
    assert [record.plan for record in runs[0]] == [record.plan for record in runs[1]]


def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    for name in ("a?b", "100%41", "a b", "#x"):
        folder = tmp_path / name
        folder.mkdir()
        go_on(open_search(folder / "search.db"), [], 2)
        assert (folder / "search.db").stat().st_size > 0
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(name)) == [name]
    assert len(list(tmp_path.iterdir())) == 4


def test_another_seed_proposes_other_plans(tmp_path: Path) -> None:
    runs = [go_on(open_search(tmp_path / f"{seed}.db", seed=seed), [], 3) for seed in (0, 100)]
    assert [record.plan for record in runs[0]] != [record.plan for record in runs[1]]


def test_guided_search_ends_nearer_to_the_best_than_its_own_start(db: Path) -> None:
    records = go_on(open_search(db), [], 20)
    assert min(cost(record.plan) for record in records[5:]) < min(cost(record.plan) for record in records[:5])


def test_an_unknown_sampler_suggests_one(db: Path) -> None:
    with pytest.raises(SpecError, match="did you mean 'random'"):
        open_search(db, sampler="randem")


# --- given splits -------------------------------------------------------------------------------------------------------

WANTED = (45, 19)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_given_split_is_proposed_with_knobs_of_the_samplers_choice(db: Path, sampler: str) -> None:
    proposal = open_search(db, sampler=sampler).ask(WANTED)
    assert proposal is not None
    assert proposal.plan.batch.samples == WANTED
    assert set(proposal.params) == set(SPACE.coordinates())


def test_a_split_given_again_and_again_still_brings_new_plans(db: Path) -> None:
    search, records = open_search(db), []
    for number in range(4):
        proposal = search.ask(WANTED)
        assert proposal is not None
        records.append(measured(number, proposal))
        search.tell(records[-1])
    assert len({record.plan.fingerprint() for record in records}) == 4
    assert OptunaState.WAITING not in states(search)


def test_a_job_of_one_rank_may_be_given_its_only_split(db: Path) -> None:
    proposal = open_search(db, space=TINY).ask((4,))
    assert proposal is not None
    assert proposal.plan.batch.samples == (4,)


# --- plans of others ----------------------------------------------------------------------------------------------------


def test_a_plan_of_another_search_is_stored_and_not_asked_for_again(db: Path) -> None:
    """The plan that was measured is the one that was proposed: nothing is encoded and decoded on the way."""
    plan = SPACE.with_knobs(WANTED, {"bucket_log2": 19})
    own = Proposal(plan=plan, params=SPACE.point(plan))
    search, record = open_search(db), measured(0, own)
    search.tell(record)
    (trial,) = trials(search)
    assert (trial.state, trial.params, trial.value) == (OptunaState.COMPLETE, own.params, cost(plan))
    assert all(ask(search).plan != plan for _ in range(3))
    assert len(trials(open_search(db, [record]))) >= 1


def test_a_plan_that_was_measured_and_not_stored_is_stored_on_resume(db: Path) -> None:
    plan = SPACE.with_knobs(WANTED, {"bucket_log2": 19})
    record = measured(0, Proposal(plan=plan, params=SPACE.point(plan)))
    assert [trial.params for trial in trials(open_search(db, [record]))] == [record.params]
    assert len(trials(open_search(db, [record]))) == 1


def test_a_plan_outside_the_space_teaches_the_sampler_nothing(db: Path) -> None:
    plan = SPACE.with_knobs(WANTED, {"bucket_log2": 40})
    search = open_search(db)
    search.tell(measured(0, Proposal(plan=plan, params=SPACE.point(plan))))
    assert trials(search) == []


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
def test_optuna_gets_how_a_trial_ended(
    db: Path, state: TrialState, optunas: OptunaState, feasible: bool, rebuilt: bool
) -> None:
    search = open_search(db)
    record = measured(0, ask(search), state)
    if rebuilt:
        search = open_search(db.with_name("another.db"), [record])
    else:
        search.tell(record)
    (trial,) = trials(search)
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
    for number in range(6):
        seen.append(measured(number, ask(search), TrialState.INFEASIBLE))
        search.tell(seen[-1])
    assert len({record.plan.fingerprint() for record in seen}) == 6


# --- after a kill ------------------------------------------------------------------------------------------------------


def test_a_trial_measured_but_not_stored_is_stored_on_reopen_and_not_rerun(db: Path) -> None:
    """Killed between the record and the telling: for Optuna the trial still runs."""
    search, records = open_search(db), []
    go_on(search, records, 2)
    records.append(measured(2, ask(search)))
    assert states(search) == [OptunaState.COMPLETE, OptunaState.COMPLETE, OptunaState.RUNNING]
    del search

    again = open_search(db, records)
    assert states(again) == [OptunaState.COMPLETE] * 3
    assert trials(again)[2].value == records[2].step_s
    assert trials(again)[2].user_attrs["record"] == 2
    assert ask(again).plan.fingerprint() not in {record.plan.fingerprint() for record in records}


@pytest.mark.parametrize("state", [TrialState.INFEASIBLE, TrialState.FAILED])
def test_a_failure_recorded_but_not_stored_is_stored_on_reopen(db: Path, state: TrialState) -> None:
    search = open_search(db)
    record = measured(0, ask(search), state)
    del search
    (trial,) = trials(open_search(db, [record]))
    assert trial.state.is_finished()
    assert trial.user_attrs["record"] == 0


def test_a_trial_that_was_running_without_a_record_is_closed_and_comes_up_again(db: Path) -> None:
    """Killed while measuring: nothing is known about the plan, so it is the first to be measured."""
    search, records = open_search(db), []
    go_on(search, records, 2)
    lost = ask(search)
    del search

    again = open_search(db, records)
    assert states(again) == [OptunaState.COMPLETE, OptunaState.COMPLETE, OptunaState.FAIL, OptunaState.WAITING]
    proposal = ask(again)
    assert (proposal.params, proposal.plan) == (lost.params, lost.plan)
    assert proposal.number != lost.number


def test_killed_again_and_again_nothing_is_lost_and_nothing_is_measured_twice(db: Path) -> None:
    """Alternately killed before and after the record, over and over; then Optuna knows every record."""
    records: list[TrialRecord] = []
    for turn in range(NUM_KILLS):
        search = open_search(db, records)
        proposal = ask(search)
        if turn % 3 == 0:
            continue  # killed while measuring
        records.append(measured(len(records), proposal))
        if turn % 3 == 1:
            continue  # killed before telling
        search.tell(records[-1])
    search = open_search(db, records)
    assert OptunaState.RUNNING not in states(search)
    assert len({record.plan.fingerprint() for record in records}) == len(records) == NUM_KILLS * 2 // 3
    told = {trial.user_attrs["record"] for trial in trials(search) if trial.state == OptunaState.COMPLETE}
    assert told == {record.number for record in records}


def test_reopening_after_a_clean_end_changes_nothing(db: Path) -> None:
    search, records = open_search(db), []
    go_on(search, records, 4)
    before = [(trial.number, trial.state, trial.value) for trial in trials(search)]
    again = open_search(db, records)
    assert [(trial.number, trial.state, trial.value) for trial in trials(again)] == before


def test_records_of_other_roles_are_not_stored_but_their_plans_are_not_proposed(db: Path) -> None:
    """The default and its peers were measured without asking the search."""
    plans = [TINY.plan({"bucket_log2": log2, "codec": "none", "transport": "gloo"}) for log2 in (16, 17)]
    peers = [
        dataclasses.replace(sample.refused(i, Role.PEER, plan, TrialState.COMPLETE, ""), steps_s=(1.0,))
        for i, plan in enumerate(plans)
    ]
    search, records = open_search(db, peers, space=TINY), list(peers)
    assert trials(search) == []
    go_on(search, records, 2)
    assert {record.plan.comm.transport for record in records[2:]} == {"mpi"}


@pytest.mark.filterwarnings("ignore:The constraint value is ignored")
def test_a_trial_killed_in_the_middle_of_being_stored_is_stored_on_reopen(db: Path) -> None:
    """Optuna's file already holds the record's number and the constraint, and still says that the trial runs."""
    search = open_search(db)
    record = measured(0, ask(search))
    trial = search._asked[record.search_number or 0]
    trial.set_user_attr("record", 0)
    trial.set_constraint("memory", -1.0)
    del search, trial
    again = open_search(db, [record])
    assert [(found.state, found.value) for found in trials(again)] == [(OptunaState.COMPLETE, record.step_s)]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_after_a_resume_the_start_up_points_are_new_ones(tmp_path: Path, sampler: str) -> None:
    """A fixed seed would replay the points of the first run, all known, and the search would learn nothing new from them."""
    db, records = tmp_path / "search.db", []
    go_on(open_search(db, sampler=sampler), records, 3)
    fresh = go_on(open_search(tmp_path / "fresh.db", sampler=sampler), [], 3)
    resumed = open_search(db, records, sampler=sampler)
    before = len(trials(resumed))
    after = go_on(resumed, records, 3)
    assert len(trials(resumed)) == before + 3  # nothing was answered from a record: no point was a replay
    assert not {str(record.params) for record in after} & {str(record.params) for record in fresh}


# --- a lost or broken file ---------------------------------------------------------------------------------------------


def test_a_deleted_file_is_rebuilt_from_the_records(db: Path) -> None:
    search, records = open_search(db), []
    go_on(search, records, 5)
    records.append(measured(5, ask(search), TrialState.INFEASIBLE))
    search.tell(records[-1])
    before = sorted(
        (trial.user_attrs["record"], trial.state, trial.value, str(trial.params)) for trial in trials(search)
    )
    del search
    for path in db.parent.iterdir():
        path.unlink()

    again = open_search(db, records)
    after = sorted((trial.user_attrs["record"], trial.state, trial.value, str(trial.params)) for trial in trials(again))
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

    assert states(open_search(killed / "search.db", records)) == [OptunaState.COMPLETE] * 3


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
    again = open_search(db, [moved])
    found: list[Any] = [(trial.state, trial.user_attrs.get("record")) for trial in trials(again)]
    assert (OptunaState.COMPLETE, 0) in found
    assert (OptunaState.RUNNING, None) not in found
