"""`autotune simulate` and `autotune plan`: predictions on one process, shown or written."""

from __future__ import annotations

from pathlib import Path

from autotune.cli.offline import export_plan, write
from autotune.cli.terminal import console
from autotune.jobs.evaluate import as_best_plan
from autotune.jobs.planning.plan import plan as find_plan
from autotune.jobs.predict import make_predictors
from autotune.jobs.predict import simulate as predict
from autotune.jobs.question import Aim, Question
from autotune.profilers.perfetto import write_trace
from autotune.workloads.registry import is_graph_file
from autotune.workloads.serial import to_data


def simulate(question: Question, *, trace: Path | None, as_json: bool) -> int:
    """The prediction for one plan; with --what-if, before and after."""
    predictors = make_predictors(question)
    forecasts = predict(question, predictors)
    if trace is not None:
        write_trace(predictors[-1].simulator.timeline(forecasts[-1].plan), trace)
    if as_json:
        write([to_data(entry) for entry in forecasts] if len(forecasts) > 1 else to_data(forecasts[0]))
        return 0
    from autotune.results.show.forecast_console import show_forecasts  # noqa: PLC0415 - rich is not needed for JSON

    pairs = zip(predictors, forecasts, strict=True)
    show_forecasts(console(), forecasts, [one.simulator.stage_table(forecast.plan) for one, forecast in pairs])
    return 0


def plan(question: Question, aim: Aim, *, export: Path | None, as_json: bool) -> int:
    """The best plan on predictions alone."""
    predictor = make_predictors(question)[-1]
    found = find_plan(question, predictor, aim)
    if export is not None:
        export_plan(export, as_best_plan(found.forecast, predictor))
    if as_json:
        write(to_data(found))
        return 0
    from autotune.results.show.forecast_console import show_planned  # noqa: PLC0415

    placed = f", {found.num_placements} placements simulated" if found.num_placements else ""
    how = f"best of {found.num_predicted} plans by {found.method}{placed}."
    if not question.what_if and not is_graph_file(
        question.workload
    ):  # neither an edited cluster nor a graph can be measured
        how += f" Measure it: {question.commands(len(predictor.cluster.devices)).command('sweep')}"
    table = predictor.simulator.stage_table(found.forecast.plan)
    show_planned(console(), found.forecast, found.default, how, table)
    if found.groups:
        from autotune.results.show.placement_console import show_placement  # noqa: PLC0415

        show_placement(console(), found.groups, found.forecast.step_s)
    return 0
