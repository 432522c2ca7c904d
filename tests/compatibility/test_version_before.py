"""Files of the version before: each is read, or refused with exit code 2 and one sentence that names the remedy.

`files/README.md` says which revision wrote them, and by which commands.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main as cli
from autotune.jobs import study
from autotune.jobs.job import read_plan_file
from autotune.jobs.script_plan import check_script_plan, choose_plan
from autotune.results.store.profile_file import load_profile
from autotune.results.store.record import DDP_DEFAULT, TrialState
from autotune.results.store.store import StudyStore
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data
from tests.mpi.launch import autotune, refused

FILES = Path(__file__).parent / "files"
SAMPLES = (43, 21)
PLANS = json.loads((FILES / "plans.json").read_text())
ON_PAIR = ("--workload", "mlp-tiny", "--cluster", "pair.toml")
SWEEP = ("sweep", *ON_PAIR, "--warmup", "1", "--steps", "3", "--rounds", "6", "--study", "before")
REMEDY = "--study NAME"
MAX_MESSAGE = 500
"""Characters of a message that is one sentence."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files as that version left them, as the working directory."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    packed = tmp_path / "results" / "before" / "pair" / "search.db.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `autotune ARGUMENTS --json` writes."""
    code = cli.main([*arguments, "--json"])
    written = capsys.readouterr()
    assert code == 0, written.err
    return json.loads(written.out)


def plans(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row["plan"] for row in (report["best"], *report["trials"])]


def still_there(then: Any, today: Any) -> Any:
    """Of the data of today what that version knew: a later version may add fields to a table, and takes none away."""
    if isinstance(then, dict) and isinstance(today, dict):
        return {key: still_there(then[key], today[key]) for key in then if key in today}
    return today


def test_best_lists_the_plan_that_was_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept,) = run(capsys, "best", "--results", "results")
    assert kept["workload"] == "mlp-tiny"
    assert tuple(kept["plan"]["batch"]["samples"]) == SAMPLES


def test_best_exports_the_plan_unchanged_in_meaning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "best", "--results", "results", "--export", "again.json")
    assert read_plan_file("again.json") == read_plan_file("plan.json")


def test_parallelize_takes_the_exported_plan(folder: Path) -> None:
    plan, kept = choose_plan("plan.json", None, 2)
    check_script_plan(plan, 2, allow_lossy=False)
    assert plan.batch.samples == SAMPLES
    assert kept is not None
    assert kept.parameters["1.weight"] == "32x64"


def test_the_plan_is_still_for_the_same_cluster(folder: Path) -> None:
    assert read_plan_file("plan.json").cluster_fingerprint == load_cluster("pair.toml").fingerprint()


@pytest.mark.parametrize("kept", PLANS, ids=[kept["name"] for kept in PLANS])
def test_every_field_of_a_plan_is_read(kept: dict[str, Any]) -> None:
    plan = from_data(Plan, kept["plan"], "plans.json")
    plan.validate(num_ranks=2, global_batch=64)
    assert plan.fingerprint() == kept["fingerprint"]


def test_the_plans_give_every_field_two_values() -> None:
    """Else a field that is read but dropped would pass."""
    parts = {part: [kept["plan"][part] for kept in PLANS if kept["plan"][part]] for part in PLANS[0]["plan"]}
    alike = {
        f"{part}.{name}"
        for part, values in parts.items()
        for name in values[0]
        if len({json.dumps(value[name]) for value in values}) == 1
    }
    assert alike == {"pipeline.first_ops", "pipeline.stage_ranks", "pipeline.tensor_parallel"}


def test_the_study_is_read_record_by_record(folder: Path) -> None:
    store = StudyStore(folder / "results" / "before" / "pair")
    records, comparison = store.records(), store.comparison()
    assert [record.number for record in records] == list(range(9))
    assert all(record.state is TrialState.COMPLETE for record in records)
    assert comparison is not None
    assert len(comparison.find(DDP_DEFAULT).rounds_s) == 6
    assert store.timeline(5).spans


def test_report_says_what_it_said_then(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    then, today = (
        json.loads((folder / "report.json").read_text()),
        run(capsys, "report", "before", "--results", "results"),
    )
    for plan_today, plan_then in zip(plans(today), plans(then), strict=True):
        assert still_there(plan_then, plan_today) == plan_then
        assert from_data(Plan, plan_then, "then") == from_data(Plan, plan_today, "today")
    assert [row["step_s"] for row in today["trials"]] == [row["step_s"] for row in then["trials"]]
    assert cli.main(["report", "before", "--results", "results"]) == 0
    assert "1.43x" in capsys.readouterr().out


@pytest.mark.parametrize(
    "file", ["report.json", "results/race/mlp-tiny@pair.json", "results/before/pair/comparison.json"]
)
def test_compare_reads_reports_races_and_comparisons(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert run(capsys, "compare", file, file)["rows"]  # and exit code 0: nothing is slower than itself


def test_compare_finds_the_study_of_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, "compare", "report.json", "before", "--results", "results")["rows"]) == 3


def test_a_prediction_uses_the_kept_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept,) = (folder / "results" / "profiles").glob("*.json")
    assert len(load_profile(kept).ranks) == 2
    simulate = ("simulate", *ON_PAIR, "--plan", "plan.json")
    measured = run(capsys, *simulate, "--results", "results")
    named = run(capsys, *simulate, "--results", "nothing", "--profile", str(kept))
    stated = run(capsys, *simulate, "--results", "nothing")
    assert measured["step_s"] == named["step_s"] != stated["step_s"]


def test_the_refusal_of_another_search_space_is_short(folder: Path) -> None:
    info = StudyStore(folder / "results" / "before" / "pair").info()
    knobs = {f"knob{number}": {"choices": ["none", "some"], "low": 0.0, "high": 1.0} for number in range(10)}
    with pytest.raises(SpecError, match=REMEDY) as refusal:
        study._check_same(info, dataclasses.replace(info, space=info.space | {"knobs": knobs}))
    assert len(str(refusal.value)) < MAX_MESSAGE


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_a_sweep_resumes_the_study_or_says_what_to_do(folder: Path) -> None:
    """One trial more than that version measured, which the search proposes from the Optuna database of that version."""
    records = folder / "results" / "before" / "pair" / "records.jsonl"
    before = records.read_bytes()
    done = autotune(2, *SWEEP, "--trials", "5", "--quiet", "--json", "--results", "results", cwd=folder)
    if done.code == 0:
        assert len(json.loads(done.out)["trials"]) == 10
        assert records.read_bytes().startswith(before)
    else:
        refused(done, REMEDY)
        assert records.read_bytes() == before


@pytest.mark.mpi
@pytest.mark.timeout(120)
@pytest.mark.slow
def test_training_takes_the_kept_plan_or_says_what_to_do(folder: Path) -> None:
    train = ("train", *ON_PAIR, "--plan", "best", "--steps", "4", "--quiet", "--json", "--results", "results")
    done = autotune(2, *train, cwd=folder)
    if done.code == 0:
        assert tuple(json.loads(done.out)["plan"]["batch"]["samples"]) == SAMPLES
    else:
        refused(done, "run `autotune sweep")
