"""Input validation: the jobs of the command line, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.jobs.job import (
    Job,
    ProfileJob,
    RaceJob,
    SweepJob,
    TrainJob,
    check_job,
    default_results,
    parse_options,
    read_plan_file,
)
from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.errors import SpecError, StoreError
from tests.results import sample


@pytest.fixture
def job(tmp_path: Path) -> SweepJob:
    return SweepJob(workload="vgg", clusters=("mixed4",), results=tmp_path / "results")


def refusal(job: Job, num_ranks: int = 4, **changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        check_job(dataclasses.replace(job, **changes), num_ranks)
    return str(caught.value)


# --- names -------------------------------------------------------------------------------------------------------------


def test_a_workload_without_options_is_called_by_its_name(job: SweepJob) -> None:
    assert (job.workload_name, job.study_name) == ("vgg", "vgg")


def test_options_are_part_of_the_name_in_alphabetical_order(job: SweepJob) -> None:
    orders = [{"lr": "0.1", "global_batch": "128"}, {"global_batch": "128", "lr": "0.1"}]
    assert {dataclasses.replace(job, options=order).workload_name for order in orders} == {
        "vgg,global_batch=128,lr=0.1"
    }


def test_a_study_may_be_named(job: SweepJob) -> None:
    assert dataclasses.replace(job, study="mine").study_name == "mine"


def test_the_study_of_a_users_workload_is_fit_for_a_path(job: SweepJob) -> None:
    assert dataclasses.replace(job, workload="pkg.mod:factory").study_name == "pkg.mod.factory"


@pytest.mark.parametrize("study", ["a/b", "../elsewhere", "..", ".", "best"])
def test_a_study_name_that_is_no_folder_of_its_own_is_refused(job: SweepJob, study: str) -> None:
    """Studies are found one folder below the results, beside the folder of kept plans."""
    assert refusal(job, study=study).startswith(f"--study {study!r}: a study's name becomes a folder")


# --- options and folders -----------------------------------------------------------------------------------------------


def test_options_are_read_as_pairs() -> None:
    assert parse_options(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


def test_the_last_of_two_values_counts() -> None:
    assert parse_options(["a=1", "a=2"]) == {"a": "2"}


@pytest.mark.parametrize("pair", ["norm", "=batch", ""])
def test_an_option_that_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(SpecError, match="write KEY=VALUE, such as --set global_batch=128"):
        parse_options([pair])


def test_results_go_below_the_working_directory_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_RESULTS", raising=False)
    assert default_results() == Path("results/data")
    monkeypatch.setenv("AUTOTUNE_RESULTS", "/elsewhere")
    assert default_results() == Path("/elsewhere")
    monkeypatch.setenv("AUTOTUNE_RESULTS", "")
    assert default_results() == Path("results/data")


# --- validation --------------------------------------------------------------------------------------------------------


def test_a_good_job_passes_with_its_clusters_cut_to_its_ranks(job: SweepJob) -> None:
    found = check_job(dataclasses.replace(job, clusters=("mixed4", "this-machine")), 3)
    assert [cluster.name for cluster in found] == ["mixed4-first3", "this-machine-x3"]
    assert [len(cluster.devices) for cluster in found] == [3, 3]


def test_a_good_job_makes_its_results_folder(job: SweepJob) -> None:
    check_job(job, 4)
    assert job.results.is_dir()


def test_an_unknown_workload_is_refused(job: SweepJob) -> None:
    assert "did you mean 'vgg'?" in refusal(job, workload="vgb")


def test_a_users_workload_is_not_judged_by_its_name(job: SweepJob) -> None:
    check_job(dataclasses.replace(job, workload="module:factory"), 4)


def test_an_unknown_cluster_is_refused(job: SweepJob) -> None:
    assert "did you mean 'mixed4'?" in refusal(job, clusters=("mixed",))


def test_more_ranks_than_devices_are_refused(job: SweepJob) -> None:
    assert "the job has 5 ranks but cluster 'mixed4' has 4 devices" in refusal(job, 5)


@pytest.mark.parametrize("num_ranks", [0, -2])
@pytest.mark.parametrize("cluster", ["mixed4", "this-machine"])
def test_a_job_of_no_ranks_is_refused(job: SweepJob, num_ranks: int, cluster: str) -> None:
    assert refusal(job, num_ranks, clusters=(cluster,))


def test_a_cluster_named_twice_is_refused(job: SweepJob) -> None:
    message = refusal(job, clusters=("mixed4", "uniform4", "mixed4"))
    assert "mixed4,uniform4,mixed4" in message
    assert "name each once" in message


def test_a_job_without_a_cluster_is_refused(job: SweepJob) -> None:
    assert "--cluster" in refusal(job, clusters=())


@pytest.mark.parametrize("what", ["trials", "steps", "warmup", "rounds"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_below_one_is_refused(job: SweepJob, what: str, value: int) -> None:
    assert refusal(job, **{what: value}) == f"--{what} is {value}: it must be at least 1"


@pytest.mark.parametrize("kind", [TrainJob, RaceJob])
def test_a_job_of_no_steps_is_refused(kind: type[TrainJob | RaceJob], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--steps is 0: it must be at least 1"):
        check_job(kind(workload="vgg", clusters=("mixed4",), results=tmp_path, steps=0), 4)


@pytest.mark.parametrize("kind", [Job, SweepJob, TrainJob, RaceJob, ProfileJob])
def test_every_kind_of_job_passes_with_its_own_defaults(kind: type[Job], tmp_path: Path) -> None:
    (cluster,) = check_job(kind(workload="vgg", clusters=("mixed4",), results=tmp_path), 4)
    assert cluster.name == "mixed4"


@pytest.mark.parametrize(("what", "option"), [("timeout_s", "--timeout"), ("time_s", "--time")])
@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_time_that_has_passed_before_anything_begins_is_refused(
    job: SweepJob, what: str, option: str, seconds: float
) -> None:
    assert refusal(job, **{what: seconds}).startswith(f"{option} is {seconds}")


@pytest.mark.parametrize("transports", [("glo",), ("gloo", "carrier-pigeon"), ()])
def test_a_transport_that_does_not_exist_is_refused(job: SweepJob, transports: tuple[str, ...]) -> None:
    assert "transport" in refusal(job, transports=transports)


def test_results_that_cannot_be_written_are_refused(job: SweepJob, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot write results to"):
        check_job(dataclasses.replace(job, results=tmp_path / "file" / "results"), 4)


# --- plan files --------------------------------------------------------------------------------------------------------


def test_a_plan_file_is_read_as_it_was_exported(tmp_path: Path) -> None:
    best = BestPlan(
        workload="vgg",
        workload_fingerprint="a",
        cluster="mixed4",
        cluster_fingerprint="b",
        plan=sample.plan(),
        step_s=0.2,
        speedup_over_default=None,
    )
    write_json(tmp_path / "plan.json", best)
    assert read_plan_file(str(tmp_path / "plan.json")) == best


def test_a_plan_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no plan file 'nowhere\.json': name a file, or use --plan best"):
        read_plan_file("nowhere.json")


def test_a_plan_file_with_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"worklod": "vgg"}', encoding="utf-8")
    with pytest.raises(SpecError, match="did you mean 'workload'"):
        read_plan_file(str(path))


@pytest.mark.parametrize(
    ("content", "why"), [("emulation = 1", "(not JSON)"), ("", "(not JSON)"), ("[1]", "(JSON, but no table)")]
)
def test_a_file_that_is_no_plan_says_what_is_one(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_plan_file(str(path))
    assert str(caught.value) == (
        f"{str(path)!r} is no plan {why}: --plan takes `best` or a file from `autotune best --export`"
    )
