"""What people see: nothing wider than the console, nothing cut short, every table labelled."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable

import pytest

from autotune.results.judge.report import build_report
from autotune.results.judge.report_data import SweepReport
from autotune.results.show.progress import SweepProgress
from autotune.results.show.report_console import make_console, show_error, show_ranking, show_report
from autotune.results.store.record import DDP_TUNED, RankResult, Role, TrialState
from autotune.workloads.cluster import load_cluster
from tests.results import sample
from tests.results.judge.test_report import BEST_FILE, finished, without_default

ESCAPE = "\x1b"
CASES: dict[str, Callable[[], SweepReport]] = {
    "finished": finished,
    "late": lambda: finished(sample.comparison(late_s=0.05)),
    "loses": lambda: finished(sample.comparison(best_s=0.52)),
    "lossy": lambda: finished(sample.comparison(best_s=0.15, best=sample.plan(codec="fp16"))),
    "stages": lambda: finished(sample.comparison(best_s=0.15, best=sample.staged_plan())),
    "interrupted": lambda: build_report(sample.info(), sample.records()[:9], None, None),
    "default does not fit": lambda: build_report(
        sample.info(), without_default(), sample.comparison(default=False), BEST_FILE
    ),
    "no limit": lambda: build_report(sample.info(limit=False), sample.records(), sample.comparison(), BEST_FILE),
    "nothing complete": lambda: build_report(sample.info(), sample.records()[4:7], None, None),
    "nothing": lambda: build_report(sample.info(), [], None, None),
}


def rendered(report: SweepReport, *, width: int = 100, terminal: bool = False, color: bool | None = None) -> str:
    stream = io.StringIO()
    show_report(make_console(stream=stream, terminal=terminal, color=color, width=width), report)
    return stream.getvalue()


def line_with(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


class TestReport:
    @pytest.mark.parametrize("width", [100, 80])
    @pytest.mark.parametrize("case", CASES)
    def test_no_line_is_wider_than_the_console(self, case: str, width: int) -> None:
        text = rendered(CASES[case](), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert ESCAPE not in text
        assert len(text.splitlines()) <= 70

    def test_trials_show_what_was_predicted_and_stages(self) -> None:
        tried = [*sample.records(), sample.trial(24, Role.SEARCH, sample.staged_plan(), 0.15)]
        text = rendered(build_report(sample.info(), tried, sample.comparison(), BEST_FILE), width=140)
        row = next(line for line in text.splitlines() if "3 stages" in line and "16 micro-batches" in line)
        assert "150" in row.split()
        assert "142" in row.split()  # 5 % less
        assert "zero-bubble" in row

    def test_the_tree_of_links_is_shown_where_there_is_one(self) -> None:
        assert "fabric" not in rendered(finished())
        info = dataclasses.replace(sample.info(), cluster=load_cluster("two-hosts-of-two"))
        text = rendered(build_report(info, sample.records(), sample.comparison(), BEST_FILE))
        assert line_with(text, "two-hosts-of-two: 4 devices in 2 hosts")
        assert text.count("fabric: 2 Gbit/s, 20 us each") == 2

    def test_one_slower_trial_is_one(self) -> None:
        measured = [record for record in sample.records() if record.step_s is not None]
        text = rendered(build_report(sample.info(), measured[:9], sample.comparison(), BEST_FILE))
        assert "and 1 slower one" in text
        assert "slower ones" not in text

    @pytest.mark.parametrize("width", [100, 80])
    def test_key_facts_are_there(self, width: int) -> None:
        report = finished()
        text = rendered(report, width=width)
        for section in ("What was compared", "What each knob was worth", "Per rank", "What was tried", "Use it"):
            assert f"{section} (emulated)" in text
        assert "57 % of the speed on the table" in text
        best = line_with(text, "best plan")
        for fact in ("300", "2.30x", "2.29-2.31", "faster", "1.12x", "90 %"):
            assert fact in best
        assert "no difference" in line_with(text, "DDP default (again)")
        assert "16 -> 27" in text
        assert "461 -> 173" in text
        assert "and 13 slower ones" in text
        assert "21 complete, 2 infeasible, 1 failed" in text
        assert BEST_FILE in text
        assert "  mpirun -n 4 autotune train --workload vgg --cluster mixed4 --plan best\n" in text

    def test_at_full_width_every_column_is_there(self) -> None:
        best = line_with(rendered(finished()), "best plan").split()
        assert best == ["best", "plan", "300", "2.30x", "2.29-2.31", "faster", "1.12x", "1.12-1.14", "90", "%", "0.118"]

    def test_it_fits_a_screen(self) -> None:
        assert len(rendered(finished()).splitlines()) <= 60

    def test_a_slower_contender_is_shown_as_slower(self) -> None:
        assert "slower" in line_with(rendered(finished(sample.comparison(best_s=0.52))), "best plan")

    def test_against_tuned_ddp_when_the_default_does_not_fit(self) -> None:
        text = rendered(CASES["default does not fit"]())
        assert "does not fit the devices" in text
        assert line_with(text, DDP_TUNED)
        assert line_with(text, "best plan").count("1.12x") == 1
        assert "Per rank (emulated): best plan" in text

    def test_the_emulation_warning_is_in_the_panel(self) -> None:
        assert "Warning: The machine could not keep the emulated pace" in rendered(CASES["late"]())

    def test_a_lossy_plan_is_marked(self) -> None:
        text = rendered(CASES["lossy"]())
        assert "%*" in line_with(text, "best plan")
        assert "* loses precision" in text

    def test_brackets_in_a_reason_are_text(self) -> None:
        assert "failed: gloo: connection reset by peer [rank 2]" in rendered(finished())

    def test_long_device_names_and_many_ranks_fold(self) -> None:
        report = finished()
        name = "AMD EPYC 7B13 64-Core Processor, 2 threads, AVX2"
        ranks = tuple(
            dataclasses.replace(report.ranks[0], rank=rank, device=name, default=_rank(rank), best=_rank(rank))
            for rank in range(16)
        )
        text = rendered(dataclasses.replace(report, ranks=ranks), width=80)
        assert max(map(len, text.splitlines())) <= 80
        assert "and 4 more ranks" in text

    def test_an_ascii_terminal_can_show_it(self) -> None:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
        show_report(make_console(stream=stream, terminal=False), finished())
        stream.flush()


class TestConsole:
    def test_colour_on_a_terminal_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        assert ESCAPE in rendered(finished(), terminal=True)
        assert ESCAPE not in rendered(finished(), terminal=False)

    def test_no_color_is_respected_unless_colour_was_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        assert ESCAPE not in rendered(finished(), terminal=True)
        assert ESCAPE in rendered(finished(), terminal=True, color=True)

    def test_colour_can_be_forced_and_forbidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert ESCAPE in rendered(finished(), terminal=False, color=True)
        assert ESCAPE not in rendered(finished(), terminal=True, color=False)

    def test_being_a_terminal_is_given_and_not_guessed(self) -> None:
        class Pty(io.StringIO):
            def isatty(self) -> bool:
                return True

        assert not make_console(stream=Pty(), terminal=False).is_terminal
        assert make_console(stream=io.StringIO(), terminal=True).is_terminal

    def test_width_is_100_at_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "240")
        assert make_console(stream=io.StringIO(), terminal=False).width == 100
        assert make_console(stream=io.StringIO(), terminal=True).width == 100
        assert make_console(stream=io.StringIO(), terminal=True, width=240).width == 100
        monkeypatch.setenv("COLUMNS", "72")
        assert make_console(stream=io.StringIO(), terminal=True).width == 72

    def test_quiet_shows_nothing(self) -> None:
        stream = io.StringIO()
        show_report(make_console(stream=stream, terminal=False, quiet=True), finished())
        assert stream.getvalue() == ""

    def test_an_error_is_one_line_whatever_is_in_it(self) -> None:
        stream = io.StringIO()
        message = "mixed4.toml [device.half] flops is '1': write a number and a unit " * 3
        show_error(make_console(stream=stream, terminal=False), message)
        assert stream.getvalue() == f"error: {message}\n"


class TestRanking:
    @pytest.mark.parametrize("width", [100, 80])
    def test_clusters_with_gains_and_reasons(self, width: int) -> None:
        reports = [dataclasses.replace(make(), cluster=name) for name, make in CASES.items()]
        stream = io.StringIO()
        show_ranking(make_console(stream=stream, terminal=False, width=width), reports)
        text = stream.getvalue()
        assert "Device mixes for vgg (emulated): fastest first" in text
        assert max(map(len, text.splitlines())) <= width
        assert text.index("lossy") < text.index("finished") < text.index("nothing complete")
        assert "2.30x" in text
        assert "default does not fit: the default does not fit the devices" in text

    def test_no_cluster_is_no_table(self) -> None:
        stream = io.StringIO()
        show_ranking(make_console(stream=stream, terminal=False), [])
        assert stream.getvalue() == ""


class TestProgress:
    def clock(self) -> Callable[[], float]:
        """3 seconds between any two looks at it."""
        times = iter(range(0, 10_000, 3))
        return lambda: float(next(times))

    def test_a_log_has_one_line_per_trial(self) -> None:
        stream = io.StringIO()
        with SweepProgress(make_console(stream=stream, terminal=False), clock=self.clock()) as progress:
            progress.start(24, "vgg on mixed4 (emulated)")
            for record in (sample.records()[0], sample.records()[23]):
                progress.trial_done(record, 0.213, 0.492)
            progress.phase("comparing [round 1 of 12]")
        assert stream.getvalue().splitlines() == [
            "vgg on mixed4 (emulated)",
            (
                "trial  1/24   492 ms/step   130 samples/s  1.000x default  "
                "DDP  samples 16/16/16/16  bucket 25 MiB  gloo  none  (~69 s left)"
            ),
            (
                "trial  2/24   213 ms/step   300 samples/s   2.31x default  "
                "samples 27/18/13/6  bucket 4 MiB  gloo  none  (~66 s left)"
            ),
            "comparing [round 1 of 12]",
        ]

    def test_a_refused_trial_is_one_line_with_its_reason(self) -> None:
        stream = io.StringIO()
        with SweepProgress(make_console(stream=stream, terminal=False), clock=self.clock()) as progress:
            progress.start(2, "sweep")
            progress.trial_done(sample.records()[6], None, None)
            progress.trial_done(sample.refused(7, Role.SEARCH, sample.plan(), TrialState.PRUNED, ""), None, None)
        _, failed, pruned = stream.getvalue().splitlines()
        assert failed.startswith("trial 1/2  failed: gloo: connection reset by peer [rank 2]  samples 27/18/13/6")
        assert failed.endswith("(~3 s left)")
        assert pruned == "trial 2/2  pruned: no reason given  samples 27/18/13/6  bucket 1 MiB  gloo  none"

    def test_without_a_default_there_is_no_ratio(self) -> None:
        stream = io.StringIO()
        with SweepProgress(make_console(stream=stream, terminal=False), clock=self.clock()) as progress:
            progress.start(2, "sweep")
            progress.trial_done(sample.records()[23], 0.213, None)
        assert "default" not in stream.getvalue()

    def test_a_time_limit_bounds_the_time_left(self) -> None:
        stream = io.StringIO()
        with SweepProgress(make_console(stream=stream, terminal=False), clock=self.clock()) as progress:
            progress.start(None, "sweep", time_limit_s=30)
            progress.trial_done(sample.records()[0], None, None)
            progress.start(1000, "sweep", time_limit_s=30)
            progress.trial_done(sample.records()[0], None, None)
        lines = [line for line in stream.getvalue().splitlines() if line.startswith("trial")]
        assert lines[0].startswith("trial 1  ")
        assert all(line.endswith("(~27 s left)") for line in lines)

    def test_on_a_terminal_it_is_one_live_line_and_failures(self) -> None:
        stream = io.StringIO()
        console = make_console(stream=stream, terminal=True, color=False, width=80)
        with SweepProgress(console, clock=self.clock()) as progress:
            progress.start(24, "vgg on mixed4")
            for record in sample.records()[:7]:
                progress.trial_done(record, 0.241, 0.492)
            progress.phase("comparing [round 1]")
            last = stream.getvalue()
        assert "7/24" in last
        assert "best 241 ms/step, 2.04x default" in last
        assert "left)" in last
        assert "comparing [round 1]" in last
        assert "failed: gloo: connection reset by peer [rank 2]" in last
        assert "492 ms/step" not in last
        assert last.endswith("\n")  # mpirun would keep a line that has not ended
        assert stream.getvalue().endswith("\x1b[2K"), "the line is wiped when the sweep ends"

    def test_a_phase_before_the_first_trial_is_said(self) -> None:
        stream = io.StringIO()
        with SweepProgress(make_console(stream=stream, terminal=True, color=False)) as progress:
            progress.phase("profiling")
        assert stream.getvalue() == "profiling\n"


def _rank(rank: int) -> RankResult:
    return dataclasses.replace(sample.ranks(sample.FAIR, 0.213)[0], rank=rank)
