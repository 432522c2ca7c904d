"""Commands that are printed: in the user's words, and complete."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autotune.results.judge.reuse import next_commands
from autotune.results.store.command_line import JobCommands, default_results, first_sweep
from autotune.results.store.record import StudyInfo
from autotune.workloads.cluster import load_cluster
from tests.results import sample

JOB = JobCommands(workload="bert_job:factory", options={"global_batch": "48"}, cluster="mixed4", num_ranks=4)


def test_a_command_names_ranks_workload_options_and_cluster() -> None:
    expected = "mpirun -n 4 autotune sweep --workload bert_job:factory --set global_batch=48 --cluster mixed4"
    assert JOB.command("sweep") == expected


def test_words_are_quoted_and_another_results_folder_is_named() -> None:
    job = dataclasses.replace(JOB, options={"path": "a b"}, cluster="my cluster.toml", results=Path("r 1"))
    assert job.command("train", "--plan", "best") == (
        "mpirun -n 4 autotune train --workload bert_job:factory --set 'path=a b' --cluster 'my cluster.toml' --plan best "
        "--results 'r 1'"
    )


def test_the_default_results_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_RESULTS", "/elsewhere")
    assert "--results" not in dataclasses.replace(JOB, results=default_results()).command("sweep")


def test_a_job_in_a_lab_runs_in_that_lab() -> None:
    line = dataclasses.replace(JOB, lab="two").command("sweep")
    assert line.startswith("autotune lab run --name two -- autotune sweep --workload")


@pytest.mark.parametrize("ranks", ["--ranks 2", "--ranks=2"])
def test_a_command_that_starts_its_ranks_itself_stays_as_it_is(ranks: str) -> None:
    assert JOB.started(f"autotune sweep {ranks}") == f"autotune sweep {ranks}"


def test_the_first_sweep_of_an_unknown_cluster_is_on_this_machine() -> None:
    assert "--cluster this-machine" in first_sweep(default_results(), "vgg", "zzz")
    assert first_sweep(default_results(), "vgg", "mixed4").startswith("mpirun -n 4 autotune sweep --workload vgg")


def lines(info: StudyInfo, *, finished: bool = True, results: Path | None = None) -> list[str]:
    found = next_commands(info, num_ranks=2, best_file="kept.json", finished=finished, results=results)
    return [command.line for command in found]


def test_a_report_names_the_workload_and_the_cluster_as_the_user_did() -> None:
    info = sample.info(command="autotune sweep --workload jobs:mine --set lr=0.1 --set a=b")
    info = dataclasses.replace(info, cluster=load_cluster("this-machine").for_ranks(2))
    job = "--workload jobs:mine --set a=b --set lr=0.1 --cluster this-machine"
    assert lines(info, finished=False) == [
        f"mpirun -n 2 autotune train {job} --plan best",
        "mpirun -n 2 autotune sweep --workload jobs:mine --set lr=0.1 --set a=b",
        "autotune report vgg-mixed4",
    ]


def test_a_report_without_its_command_goes_by_the_names_in_its_records() -> None:
    info = dataclasses.replace(sample.info(command=""), cluster=load_cluster("mixed4").for_ranks(2))
    info = dataclasses.replace(info, workload=dataclasses.replace(info.workload, name="jobs:mine,lr=0.1"))
    assert lines(info)[0].endswith("train --workload jobs:mine --set lr=0.1 --cluster mixed4 --plan best")


def test_a_report_names_the_folder_that_it_was_read_from() -> None:
    info = sample.info(command="autotune sweep --results old --set lr=1")
    assert lines(info)[-1] == "autotune report vgg-mixed4 --results old"
    assert lines(info, results=Path("new"))[-1] == "autotune report vgg-mixed4 --results new"


def test_of_several_clusters_a_report_names_its_own_by_the_name_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "any.toml").write_text('name = "mixed4"\n[device.a]\n[[host]]\ndevices = ["a"]\n', encoding="utf-8")
    info = sample.info(command=f"autotune sweep --cluster uniform4,{tmp_path}/any.toml")
    assert f"--cluster {tmp_path}/any.toml" in lines(info)[0]


def test_a_report_of_a_lab_starts_jobs_in_it() -> None:
    cluster = dataclasses.replace(load_cluster("mixed4"), in_lab=True)
    info = dataclasses.replace(sample.info(), cluster=cluster, environment={"lab": "two"})
    assert lines(info)[0].startswith("autotune lab run --name two -- autotune train")
