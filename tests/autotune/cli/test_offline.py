"""`autotune report` and `autotune best`: what they show, write and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main as cli
from autotune.jobs.job import read_plan_file
from autotune.profilers.perfetto import read_trace
from autotune.profilers.timeline import Span, Timeline
from autotune.results.store.best import save_best
from autotune.results.store.store import StudyStore
from tests.autotune.cli.commands import kept, make_study, run
from tests.results import sample

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
    traced = Timeline(spans=(Span(rank=1, track="compute", kind="forward", op="forward", start_s=0.0, end_s=0.5),))
    StudyStore(tmp_path / "vgg-mixed4" / "mixed4").write_timeline(2, traced)
    target = tmp_path / "trace.json"
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(target), "--trial", "2"]) == 0
    assert read_trace(target) == traced
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(target), "--trial", "3"]) == 2
    assert "no trace of trial 3 is kept: name one of 2" in capsys.readouterr().err
    assert cli.main(["report", "--results", str(tmp_path), "--trace", str(tmp_path / "no" / "t"), "--trial", "2"]) == 2
    assert "cannot write trace" in capsys.readouterr().err


def traced_step(op: str) -> Timeline:
    return Timeline(spans=(Span(rank=1, track="compute", kind="forward", op=op, start_s=0.0, end_s=0.5),))


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
