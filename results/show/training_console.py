"""What came of a training run, in a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from autotune.results.judge.stats import Ratio, with_remedy
from autotune.results.judge.training import TrainingReport
from autotune.results.show.report_console import show_breakdown
from autotune.results.store.decision import in_words
from autotune.results.store.forecast import Forecast
from autotune.results.text.numbers import (
    format_interval,
    format_ms,
    format_percent,
    format_rate,
    format_times,
    plan_summary,
)
from autotune.workloads.quantity import format_bytes

_MOST_STRETCHES = 20


def show_training(console: Console, report: TrainingReport) -> None:
    """The run, and how its plan compares with the default."""
    lines = [
        f"{report.num_steps} steps in {report.seconds:.1f} s, {format_rate(report.samples_per_s)} samples/s",
        f"loss {report.losses[0]:.4g} -> {report.losses[-1]:.4g}",
        _against_default(report.speedup),
        f"plan: {plan_summary(report.plan)}",
    ]
    if report.accuracy is not None:
        lines.insert(2, f"accuracy {100 * report.accuracy:.1f} % on held-out data")
    title = f"{report.workload} on {report.cluster}{report.scenario and f' under {report.scenario}'} ({report.label})"
    text = Text("\n".join(lines))
    for warning in report.warnings:
        text.append(f"\nWarning: {warning}", style="yellow")
    console.print(Panel(text, title=title, title_align="left"))
    console.print(_rank_table(report))
    if report.predicted is not None:
        console.print(_predicted_table(report, report.predicted))
    show_breakdown(console, f"Where a step goes ({report.label})", report.breakdown, report.costs)
    if report.decisions:
        console.print(Text(f"Decided while training ({report.label})", style="bold"))
        for decision in report.decisions[:_MOST_STRETCHES]:
            console.print(Text(f"  step {decision.step}: {in_words(decision)}"))
        if len(report.decisions) > _MOST_STRETCHES:
            console.print(Text(f"  and {len(report.decisions) - _MOST_STRETCHES} more"))
    if report.stretches:
        title = f"Under {report.scenario} ({report.label}): mean step between changes"
        console.print(Text(title, style="bold"))
        console.print(_stretch_table(report))


def _against_default(ratio: Ratio | None) -> str:
    if ratio is None:
        return "torch DDP with its defaults cannot run on these devices: nothing to compare with"
    interval = format_interval(ratio.low, ratio.high)
    verdict = with_remedy(ratio.verdict)
    return f"{format_times(ratio.value)} ({interval}) torch DDP's defaults, interleaved in this job: {verdict}"


def _rank_table(report: TrainingReport) -> Table:
    table = Table(
        title=f"Per rank, median step ({report.label})", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in ("rank", "device", "samples", "compute ms", "wait ms", "CPU ms", "peak memory"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for rank in report.ranks:
        table.add_row(
            str(rank.rank),
            rank.device,
            str(rank.samples),
            format_ms(rank.compute_s),
            format_ms(rank.wait_s),
            format_ms(rank.cpu_s),
            format_bytes(rank.peak_memory_bytes),
        )
    return table


def _predicted_table(report: TrainingReport, predicted: Forecast) -> Table:
    """What was expected of the plan, beside what it took: the step, and the bubble and memory of each rank."""
    table = Table(
        title=f"Predicted beside measured ({report.label})", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in ("", "predicted", "measured", "off by"):
        table.add_column(name, justify="left" if not name else "right")
    step_s = report.plan.global_batch / report.samples_per_s
    table.add_row("ms/step", format_ms(predicted.step_s), format_ms(step_s), _off(predicted.step_s, step_s))
    for expected, found in zip(predicted.ranks, report.ranks, strict=True):
        bubble = found.wait_s / max(found.wait_s + found.compute_s, 1e-12)
        table.add_row(f"rank {found.rank} bubble", format_percent(expected.bubble), format_percent(bubble), "")
        held, peak = expected.peak_memory_bytes, found.peak_memory_bytes
        table.add_row(f"rank {found.rank} memory", format_bytes(held), format_bytes(peak), _off(held, peak))
    return table


def _off(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %" if measured else ""


def _stretch_table(report: TrainingReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("steps", "ms/step"):
        table.add_column(name, justify="right")
    for stretch in report.stretches[:_MOST_STRETCHES]:
        table.add_row(f"{stretch.first}-{stretch.last}", format_ms(stretch.step_s))
    if len(report.stretches) > _MOST_STRETCHES:
        table.add_row(f"and {len(report.stretches) - _MOST_STRETCHES} more", "")
    return table
