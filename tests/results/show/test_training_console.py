"""The end of a training run in a terminal: of a pipeline, what was predicted beside what was measured."""

from __future__ import annotations

import io
from dataclasses import replace

from autotune.profilers.breakdown import Breakdown
from autotune.results.judge.stats import Ratio
from autotune.results.judge.training import TrainingReport
from autotune.results.show.report_console import make_console
from autotune.results.show.training_console import show_training
from autotune.results.store.forecast import Forecast, RankForecast
from autotune.workloads.plan import MIB
from tests.results import sample


def report() -> TrainingReport:
    plan = sample.staged_plan()
    measured = sample.ranks(plan.batch.samples, 0.2)
    expected = Forecast(
        workload="vgg",
        cluster="mixed4",
        plan=plan,
        global_batch=plan.global_batch,
        step_s=0.19,
        num_tasks=1,
        ranks=tuple(
            RankForecast(
                rank=rank.rank,
                device=rank.device,
                samples=rank.samples,
                compute_s=0.1,
                peak_memory_bytes=500.0 * MIB,
                peak_at_s=0.1,
                bubble=0.25,
            )
            for rank in measured
        ),
    )
    return TrainingReport(
        workload="vgg",
        cluster="mixed4",
        label="emulated",
        scenario="",
        plan=plan,
        num_steps=10,
        seconds=2.0,
        samples_per_s=plan.global_batch / 0.2,
        losses=(2.0, 1.0),
        accuracy=None,
        stretches=(),
        speedup=None,
        ranks=measured,
        breakdown=Breakdown(),
        costs=(),
        predicted=expected,
    )


def test_a_pipeline_shows_its_prediction() -> None:
    stream = io.StringIO()
    show_training(make_console(stream=stream, terminal=False, width=100), report())
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert any("Predicted beside measured (emulated)" in line for line in lines)
    step = next(line for line in lines if line.startswith("ms/step"))
    assert step.split()[1:] == ["190", "200", "-5.0", "%"]
    assert sum("bubble" in line for line in lines) == sum(
        line.startswith("rank ") and "memory" in line for line in lines
    )
    assert next(line for line in lines if line.startswith("rank 0 bubble")).split()[3:5] == ["25", "%"]


def test_few_rounds_get_no_verdict() -> None:
    for num_rounds, words in ((2, "too few rounds (6 or more"), (6, "in this job: faster")):
        stream = io.StringIO()
        ratio = Ratio(value=2.44, low=2.42, high=2.45, num_rounds=num_rounds)
        show_training(make_console(stream=stream, terminal=False), replace(report(), speedup=ratio))
        assert words in stream.getvalue()
