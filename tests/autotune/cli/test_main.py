"""The command line: light to start, one JSON document with --json, and an exit code for each kind of error."""

from __future__ import annotations

import json
import resource
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import doctor, offline, parser
from autotune.cli import main as cli
from tests.autotune.cli.commands import make_study, run
from tests.results import sample

HEAVY = ("torch", "mpi4py", "optuna")
MAX_CPU_S = 0.5
COMMANDS = ("doctor", "sweep", "train", "best", "report")
RUN_AND_LIST_HEAVY = f"""
import sys
from autotune.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.stderr.write("LOADED " + ",".join(loaded))
sys.exit(code)
"""


def light_commands(results: Path) -> list[list[str]]:
    where = ["--results", str(results)]
    return [
        ["--help"],
        ["--version"],
        ["sweep", "--help"],
        ["report", *where],
        ["report", "--json", *where],
        ["best", *where],
        ["best", "--json", *where],
    ]


# --- light to start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(7))
def test_help_report_and_best_load_neither_torch_nor_mpi_nor_optuna(results: Path, index: int) -> None:
    done = run(*light_commands(results)[index], code=RUN_AND_LIST_HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == "LOADED "


@pytest.mark.parametrize("index", [0, 3], ids=["help", "report"])
def test_help_and_report_take_less_than_half_a_second_of_cpu_time(results: Path, index: int) -> None:
    used_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run(*light_commands(results)[index]).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used_s) < MAX_CPU_S


def test_a_sweep_that_is_refused_loads_nothing_heavy(tmp_path: Path) -> None:
    arguments = ["sweep", "--ranks", "2", "--workload", "vgb", "--results", str(tmp_path)]
    done = run(*arguments, code=RUN_AND_LIST_HEAVY)
    assert done.returncode == 2
    assert done.stderr.endswith("LOADED ")


# --- help --------------------------------------------------------------------------------------------------------------


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in COMMANDS)


def test_help_of_sweep_names_the_workloads_and_clusters_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    text = "".join(capsys.readouterr().out.split())  # lines may break at a hyphen
    assert "vgg-tiny" in text
    assert "slow-link4" in text


@pytest.mark.parametrize(
    "arguments", [[], ["swep"], ["sweep", "--workload", "vgg", "--trials", "many"], ["report", "--html"]]
)
def test_bad_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().out == ""


# --- JSON --------------------------------------------------------------------------------------------------------------


def test_report_json_is_exactly_one_document(results: Path) -> None:
    done = run("report", "--json", "--results", str(results))
    document = json.loads(done.stdout)
    assert (document["workload"], document["cluster"]) == ("vgg", "mixed4")
    assert document["gain"] == pytest.approx(2.3, rel=0.05)
    assert done.stderr == ""


def test_best_json_is_exactly_one_document(results: Path) -> None:
    done = run("best", "--json", "--results", str(results))
    (document,) = json.loads(done.stdout)
    assert document["plan"]["batch"]["samples"] == list(sample.FAIR)
    assert Path(document["file"]).exists()
    assert done.stderr == ""


def test_report_json_of_several_clusters_is_one_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(tmp_path, "vgg", "mixed4")
    make_study(tmp_path, "vgg", "uniform4")
    assert cli.main(["report", "vgg", "--json", "--results", str(tmp_path)]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_doctor_json_is_exactly_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_ask", lambda _code: doctor._Answer(ok=True, text="fine"))
    monkeypatch.setattr(doctor, "find_mpirun", lambda: None)
    code = cli.main(["doctor", "--json", "--results", str(tmp_path)])
    findings = json.loads(capsys.readouterr().out)
    assert code == 1
    assert {finding["state"] for finding in findings} <= {"ok", "note", "problem"}


def test_an_error_with_json_leaves_stdout_empty(tmp_path: Path) -> None:
    done = run("report", "--json", "--results", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("autotune: error: no study in ")


# --- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "code"), [(cli.AutotuneError("x"), 1), (offline.SpecError("x"), 2)])
def test_an_error_ends_with_the_exit_code_of_its_kind(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> int:
        raise error

    monkeypatch.setattr(offline, "report", fail)
    assert cli.main(["report"]) == code
    assert capsys.readouterr().err == "autotune: error: x\n"


# --- the version -------------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_installed_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"autotune {metadata.version('hetero-autotune')}\n"


def test_a_source_folder_has_no_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(parser, "DISTRIBUTION", "not-installed")
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("autotune (version unknown: not-installed is not installed")
