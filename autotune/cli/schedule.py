"""`autotune schedule`: read a graph of blocks, or cut a model or op graph into stages; search, show or write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.cli.offline import write
from autotune.cli.terminal import STDERR, console, is_terminal
from autotune.jobs.question import Question
from autotune.profilers.perfetto import check_trace_file, write_trace
from autotune.schedule.answer import answer_data, as_timeline, torch_csv
from autotune.schedule.search import Answer, search
from autotune.workloads.block_file import check_slots, read_block_graph
from autotune.workloads.blocks import BlockGraph
from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The input of `autotune schedule`."""

    file: Path | None
    question: Question | None = None
    """Instead of a file: the workload to cut into stages, and the cluster."""
    stages: int | None = None
    """None: one per device."""
    micro_batches: int
    time_s: float | None
    csv: Path | None
    trace: Path | None


def schedule(request: Request, *, as_json: bool, quiet: bool) -> int:
    """The best schedule for a placement."""
    graph = _blocks(request)
    check_slots(graph, request.micro_batches)
    if request.trace is not None:
        check_trace_file(request.trace)
    answer = _search(graph, request, silent=as_json or quiet)
    if request.csv is not None:
        _write_csv(request.csv, torch_csv(graph, answer.table))
    if request.trace is not None:
        write_trace(as_timeline(answer.table), request.trace)
    if as_json:
        write(answer_data(answer))
        return 0
    from autotune.results.show.schedule_console import show_schedule  # noqa: PLC0415 - rich is not needed for JSON

    show_schedule(console(), answer_data(answer), answer.table)
    return 0


def _blocks(request: Request) -> BlockGraph:
    if (request.file is None) == (request.question is None):
        raise SpecError("schedule takes a file of blocks or --workload with --cluster: name one of them")
    if request.file is not None:
        return read_block_graph(request.file)
    assert request.question is not None
    from autotune.jobs.predict import make_predictors, stage_blocks  # noqa: PLC0415 - loads torch

    predictor = make_predictors(request.question)[-1]
    return stage_blocks(predictor, request.stages, request.micro_batches)


def _search(graph: BlockGraph, request: Request, *, silent: bool) -> Answer:
    if silent or not is_terminal(STDERR):
        return search(graph, request.micro_batches, time_s=request.time_s)
    from autotune.results.show.schedule_console import Ticker  # noqa: PLC0415

    ticker = Ticker(console(STDERR))
    return search(graph, request.micro_batches, time_s=request.time_s, on_progress=ticker.update)


def _write_csv(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {str(path)!r}: {error.strerror}") from error
