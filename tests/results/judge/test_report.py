"""The report's figures and sentences, finished sweep or not."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from statistics import median

import pytest

from autotune.results.judge.report import build_report, rank_clusters
from autotune.results.judge.report_data import Standing, SweepReport
from autotune.results.judge.stats import MIN_ROUNDS, TOO_FEW, speedup
from autotune.results.judge.wording import local_norms_warning
from autotune.results.store.record import BEST, DDP_DEFAULT, DDP_TUNED, Comparison, Limit, Role, TrialRecord, TrialState
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import to_data
from tests.results import sample

BEST_FILE = "results/data/best/vgg-mixed4.json"


def finished(comparison: Comparison | None = None) -> SweepReport:
    return usual() if comparison is None else build_report(sample.info(), sample.records(), comparison, BEST_FILE)


@functools.cache
def usual() -> SweepReport:
    return build_report(sample.info(), sample.records(), sample.comparison(), BEST_FILE)


def without_default() -> list[TrialRecord]:
    plan = sample.plan(sample.EVEN, reducer="ddp")
    default = sample.refused(0, Role.DEFAULT, plan, TrialState.INFEASIBLE, sample.NO_ROOM)
    return [default, *sample.records()[1:]]


def row(report: SweepReport, name: str) -> Standing:
    return next(standing for standing in report.comparison if standing.name == name)


class TestFinishedSweep:
    def test_trials_are_ordered_by_step_time_and_the_unmeasured_come_last(self) -> None:
        report = finished()
        measured = [trial.step_s for trial in report.trials if trial.step_s is not None]
        assert measured == sorted(measured)
        assert [trial.state for trial in report.trials[-3:]] == ["infeasible", "infeasible", "failed"]
        assert report.trials[-1].reason.startswith("gloo")
        assert report.counts == {"complete": 21, "pruned": 0, "infeasible": 2, "failed": 1}

    def test_a_trial_stands_beside_the_defaults_trial(self) -> None:
        report = finished()
        best, default = report.trials[0], next(trial for trial in report.trials if trial.role == "default")
        assert best.ratio_to_default == pytest.approx(0.492 / 0.213)
        assert best.samples_per_s == pytest.approx(64 / 0.213)
        assert default.ratio_to_default == 1
        assert best.cpu_s_per_step == pytest.approx(4 * 0.012 + 64 * 0.0011)

    def test_comparison_rows_are_medians_over_rounds_against_the_first_and_against_tuned_ddp(self) -> None:
        comparison = sample.comparison()
        report = finished(comparison)
        first, tuned, best = (comparison.find(name) for name in (DDP_DEFAULT, DDP_TUNED, BEST))
        shown = row(report, BEST)
        assert [standing.name for standing in report.comparison] == [DDP_DEFAULT, DDP_TUNED, BEST]
        assert shown.step_s == median(best.rounds_s)
        assert shown.samples_per_s == 64 / median(best.rounds_s)
        assert shown.vs_first == speedup(first.rounds_s, best.rounds_s)
        assert shown.vs_tuned == speedup(tuned.rounds_s, best.rounds_s)
        assert shown.verdict == "faster"
        assert shown.fraction_of_limit == pytest.approx(0.191 / shown.step_s)
        assert shown.cpu_s_per_step == pytest.approx(sum(rank.cpu_s for rank in best.ranks))
        assert row(report, DDP_DEFAULT).vs_first is None
        assert row(report, DDP_TUNED).vs_tuned is None

    def test_the_baseline_measured_again_is_the_noise(self) -> None:
        noise = finished().noise
        assert noise is not None
        assert noise.vs_first is not None
        assert noise.vs_first.value == pytest.approx(1, abs=0.02)
        assert noise.verdict == "no difference"

    def test_knobs_are_worth_what_is_lost_without_them(self) -> None:
        comparison = sample.comparison()
        knobs = finished(comparison).knobs
        assert [knob.knob for knob in knobs] == ["batch split", "bucket size", "reducer"]
        assert knobs[0].worth == speedup(comparison.find("even split").rounds_s, comparison.find(BEST).rounds_s)
        assert [knob.verdict for knob in knobs] == ["faster", "faster", "no difference"]

    def test_ranks_of_the_default_and_the_best_stand_side_by_side(self) -> None:
        ranks = finished().ranks
        assert [rank.device for rank in ranks] == ["full", "two-thirds", "half", "quarter"]
        assert [(rank.default and rank.default.samples, rank.best and rank.best.samples) for rank in ranks] == [
            (16, 27),
            (16, 18),
            (16, 13),
            (16, 6),
        ]

    @pytest.mark.parametrize(
        ("limit", "part"),
        [((3, 2, 1), "compute"), ((1, 3, 2), "network"), ((1, 2, 3), "path")],
    )
    def test_the_largest_part_of_the_limit_binds(self, limit: tuple[float, float, float], part: str) -> None:
        compute_s, network_s, path_s = (value / 1000 for value in limit)
        info = dataclasses.replace(sample.info(), limit=Limit(compute_s=compute_s, network_s=network_s, path_s=path_s))
        report = build_report(info, sample.records(), sample.comparison(), None)
        assert report.limit_part == part
        assert any("No lossless plan can take less than 3.00 ms" in finding for finding in report.findings)

    def test_the_headline_says_what_the_default_leaves_on_the_table(self) -> None:
        report = finished()
        assert report.gain == pytest.approx(2.30, abs=0.02)
        assert "leaves 57 % of the speed on the table" in report.headline
        assert "130 samples/s" in report.headline
        assert "300 samples/s" in report.headline
        assert "mixed4 (emulated)" in report.headline
        assert not report.warnings

    def test_the_simulators_error_is_a_figure_of_the_report(self) -> None:
        assert finished().model_error == pytest.approx(0.05)

    def test_it_is_json(self) -> None:
        data = json.loads(json.dumps(to_data(finished()), allow_nan=False))
        assert data["best"]["plan"]["batch"]["samples"] == [27, 18, 13, 6]
        assert data["comparison"][2]["vs_first"]["low"] > 2
        assert data["best_file"] == BEST_FILE


class TestHonesty:
    def test_a_best_plan_that_loses_the_comparison_is_said_to_lose(self) -> None:
        report = finished(sample.comparison(best_s=0.52))
        assert row(report, BEST).verdict == "slower"
        assert "no faster than the default" in report.headline
        assert "tuned DDP is faster: use that" in report.headline

    def test_no_difference_from_the_default_is_advice_to_keep_it(self) -> None:
        whole = sample.comparison(best_s=0.4915)
        report = finished(dataclasses.replace(whole, contenders=(whole.contenders[0], whole.find(BEST))))
        assert "no difference. Keep the default." in report.headline

    def test_without_a_best_contender_the_fastest_stands_in(self) -> None:
        whole = sample.comparison()
        report = finished(dataclasses.replace(whole, contenders=whole.contenders[:1]))
        assert report.best is not None
        assert report.best.name == DDP_DEFAULT
        assert report.gain == 1
        assert "is the fastest plan found" in report.headline

    def test_a_rank_that_lags_behind_its_emulated_device_is_a_warning(self) -> None:
        assert not finished(sample.comparison(late_s=0.010)).warnings
        (warning,) = finished(sample.comparison(late_s=0.012)).warnings
        assert "could not keep the emulated pace" in warning
        assert "rank 0 ran 12.0 ms late in a step of 213 ms" in warning
        assert "not to be trusted" in warning

    def test_a_default_that_lags_flatters_the_gain(self) -> None:
        whole = sample.comparison()
        late = dataclasses.replace(whole.contenders[0], ranks=sample.ranks(sample.EVEN, 0.492, late_s=0.1))
        (warning,) = finished(dataclasses.replace(whole, contenders=(late, *whole.contenders[1:]))).warnings
        assert "the gain over it is flattered" in warning

    def test_few_rounds_are_a_warning_and_unfinished_rounds_are_left_out(self) -> None:
        whole = sample.comparison()
        cut = [
            dataclasses.replace(one, rounds_s=one.rounds_s[: 4 - index % 2])
            for index, one in enumerate(whole.contenders)
        ]
        report = finished(dataclasses.replace(whole, contenders=tuple(cut)))
        assert report.num_rounds == 3
        assert any("Only 3 rounds compared" in warning for warning in report.warnings)

    def test_a_baseline_that_differs_from_itself_is_a_warning(self) -> None:
        whole = sample.comparison()
        again = dataclasses.replace(whole.contenders[-1], rounds_s=sample.rounds(0.53, 9))
        report = finished(dataclasses.replace(whole, contenders=(*whole.contenders[:-1], again)))
        assert any("DDP default measured twice differs from itself by 7" in warning for warning in report.warnings)

    def test_a_lossless_plan_faster_than_the_limit_is_a_warning(self) -> None:
        assert any("Faster than the limit" in warning for warning in finished(sample.comparison(best_s=0.15)).warnings)

    def test_a_lossy_best_plan_is_named_as_such(self) -> None:
        report = finished(sample.comparison(best_s=0.15, best=sample.plan(codec="fp16")))
        assert not report.warnings
        assert any("as fp16, which loses precision" in finding for finding in report.findings)


class TestAwkwardSweeps:
    def test_interrupted_before_the_comparison(self) -> None:
        report = build_report(sample.info(), sample.records()[:9], None, None)
        assert report.comparison == ()
        assert report.gain == pytest.approx(0.492 / 0.241)
        assert report.gain_interval == ()
        assert "ended before its final comparison, after 9 trials" in report.headline
        assert "2.04x the default" in report.headline
        assert [command.purpose for command in report.commands] == ["go on with the sweep", "see this report again"]

    def test_interrupted_after_the_default_alone(self) -> None:
        report = build_report(sample.info(), sample.records()[:1], None, None)
        assert "after 1 trial." in report.headline
        assert "nothing is faster than the default" in report.headline

    def test_interrupted_with_a_best_trial_that_lagged(self) -> None:
        slow = dataclasses.replace(sample.records()[-1], ranks=sample.ranks(sample.FAIR, 0.213, late_s=0.05))
        assert build_report(sample.info(), [slow], None, None).warnings

    def test_default_that_does_not_fit(self) -> None:
        report = build_report(sample.info(), without_default(), sample.comparison(default=False), BEST_FILE)
        assert report.default is None
        assert report.gain is None
        assert report.noise is None
        assert f"does not fit the devices: {sample.NO_ROOM}." in report.headline
        assert "1.12x tuned DDP" in report.headline
        assert row(report, BEST).vs_first == row(report, BEST).vs_tuned
        assert all(trial.ratio_to_default is None for trial in report.trials)
        assert all(rank.default is None and rank.best is not None for rank in report.ranks)

    def test_default_that_does_not_fit_and_no_comparison(self) -> None:
        report = build_report(sample.info(), without_default(), None, None)
        assert "does not fit the devices" in report.headline

    def test_no_complete_trial(self) -> None:
        report = build_report(sample.info(), without_default()[:1] + sample.records()[4:7], None, None)
        assert report.best is None
        assert report.ranks == ()
        assert "No plan could be measured for vgg on mixed4 (emulated): 3 infeasible, 1 failed." in report.headline
        assert sample.NO_ROOM in report.headline

    def test_no_trial_at_all(self) -> None:
        report = build_report(sample.info(), [], None, None)
        assert report.headline == "No plan has been measured yet for vgg on mixed4 (emulated)."

    def test_limit_unknown(self) -> None:
        report = build_report(sample.info(limit=False), sample.records(), sample.comparison(), BEST_FILE)
        assert report.limit_part == ""
        assert row(report, BEST).fraction_of_limit is None
        assert not any("lossless" in finding for finding in report.findings)

    def test_a_comparison_whose_rounds_never_ran_counts_as_none(self) -> None:
        whole = sample.comparison()
        empty = tuple(dataclasses.replace(one, rounds_s=()) for one in whole.contenders)
        report = build_report(sample.info(), sample.records(), dataclasses.replace(whole, contenders=empty), None)
        assert "ended before its final comparison" in report.headline


class TestCommands:
    def test_training_with_the_best_plan(self) -> None:
        line = finished().commands[0].line
        assert line == "mpirun -n 4 autotune train --workload vgg --cluster mixed4 --plan best"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (
                "--workload jobs:mine --cluster 'my cluster.toml'",
                "--workload jobs:mine --cluster 'my cluster.toml' --plan best",
            ),
            ("--workload=vgg --cluster uniform4,mixed4", "--workload vgg --cluster mixed4 --plan best"),
            ("--workload vgg", "--workload vgg --cluster mixed4 --plan best"),
            ("--workload vgg --results /data/r", "--workload vgg --cluster mixed4 --plan best --results /data/r"),
        ],
    )
    def test_names_are_those_that_the_user_gave(self, given: str, expected: str) -> None:
        info = sample.info(command=f"mpirun -n 4 autotune sweep {given} --trials 9")
        report = build_report(info, sample.records(), sample.comparison(), BEST_FILE)
        assert report.commands[0].line == f"mpirun -n 4 autotune train {expected}"


class TestRankClusters:
    def cluster(self, name: str, report: SweepReport) -> SweepReport:
        return dataclasses.replace(report, cluster=name)

    def test_the_fastest_cluster_is_first_and_the_unmeasured_last(self) -> None:
        nothing = build_report(sample.info(), [], None, None)
        slow, fast = finished(sample.comparison(best_s=0.3)), finished()
        rows = rank_clusters([self.cluster("none", nothing), self.cluster("slow", slow), self.cluster("fast", fast)])
        assert [(row.place, row.cluster) for row in rows] == [(1, "fast"), (2, "slow"), (3, "none")]
        assert rows[0].gain == fast.gain
        assert rows[0].gain_interval == fast.gain_interval
        assert rows[2].samples_per_s is None
        assert rows[2].note.startswith("No plan has been measured")

    def test_a_cluster_that_the_default_does_not_fit_has_no_gain_but_a_reason(self) -> None:
        report = build_report(sample.info(), without_default(), sample.comparison(default=False), None)
        (row,) = rank_clusters([report])
        assert row.gain is None
        assert row.note.startswith("the default does not fit the devices")

    def test_clusters_of_two_workloads_do_not_compare(self) -> None:
        report = finished()
        with pytest.raises(SpecError, match="clusters were tuned for gpt, vgg"):
            rank_clusters([report, dataclasses.replace(report, workload="gpt")])


def test_a_real_cluster_is_labelled_as_measured() -> None:
    cluster = load_cluster("this-machine").for_ranks(4)
    report = build_report(dataclasses.replace(sample.info(), cluster=cluster), sample.records(), None, None)
    assert report.label == "measured on this machine"


def test_norms_that_are_not_synchronised_are_a_warning() -> None:
    info = sample.info()
    info = dataclasses.replace(info, workload=dataclasses.replace(info.workload, num_local_norms=3))
    (warning,) = set(build_report(info, sample.records(), sample.comparison(), BEST_FILE).warnings) - set(
        usual().warnings
    )
    assert warning.startswith("3 BatchNorm layers take their statistics over each rank's own samples")
    assert local_norms_warning(3, num_ranks=1) == local_norms_warning(0, num_ranks=4) == ""


def test_importing_the_report_loads_nothing_heavy() -> None:
    heavy = ("torch", "mpi4py", "optuna", "numpy", "rich")
    code = f"import sys, autotune.results.judge.report; print(*(name for name in {heavy} if name in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr


def few_rounds(num_rounds: int) -> SweepReport:
    whole = sample.comparison()
    cut = tuple(dataclasses.replace(one, rounds_s=one.rounds_s[:num_rounds]) for one in whole.contenders)
    return build_report(sample.info(), sample.records(), dataclasses.replace(whole, contenders=cut), BEST_FILE)


def test_few_rounds_are_said_to_be_too_few_everywhere() -> None:
    report = few_rounds(MIN_ROUNDS - 1)
    assert report.headline.startswith("5 rounds cannot decide whether the best plan found is faster than the default")
    assert "no difference" not in report.headline
    standings = [*report.comparison[1:], report.noise, *report.knobs]
    assert {row.verdict for row in standings if row is not None} == {TOO_FEW}
    assert (
        "Kept for reuse: DDP default, because the rounds are too few to decide whether the search's is faster."
        in report.findings
    )
    assert any(warning.startswith("Only 5 rounds compared") for warning in report.warnings)
    assert not any("differs from itself" in warning for warning in report.warnings)
    assert TOO_FEW not in few_rounds(MIN_ROUNDS).headline
