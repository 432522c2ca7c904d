"""The sentences of a report, for a reader who has never seen the tool.

Each function takes the report's figures and returns text. Losses are stated as plainly as wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.results.judge.report_data import Standing, SweepReport
from autotune.results.judge.stats import MIN_ROUNDS, NO_DIFFERENCE, TOO_FEW
from autotune.results.store.record import BEST, DDP_DEFAULT, DDP_TUNED
from autotune.results.text.numbers import (
    codecs_text,
    format_interval,
    format_ms,
    format_percent,
    format_rate,
    format_times,
)

LATE_FRACTION = 0.05
"""Emulated ranks that lag more than this share of a step no longer behave like the device they stand for."""
ABOVE_LIMIT = 1.02

DEFAULT = "The default (torch DDP, even split)"
BINDS = {
    "compute": "all devices together cannot compute a batch faster",
    "network": "the tightest host link cannot carry the gradients faster",
    "path": "the fastest device cannot compute a single sample faster",
}


def headline(report: SweepReport) -> str:
    """What a reader should take away if they read nothing else."""
    if report.best is None:
        return _nothing_measured(report)
    if not report.comparison:
        return _not_compared(report, report.best)
    if report.default is None:
        return _without_default(report, report.best)
    return _against_default(report, report.default, report.best)


def findings(report: SweepReport) -> tuple[str, ...]:
    """The sentences below the headline."""
    found = (_about_tuned(report), _about_limit(report), _about_loss(report), _about_kept(report))
    return tuple(sentence for sentence in found if sentence)


def warnings(report: SweepReport) -> tuple[str, ...]:
    """Reasons to trust the figures less."""
    found = (*_late(report), _few_rounds(report), _noisy(report), _beyond_limit(report))
    return tuple(sentence for sentence in found if sentence)


def local_norms_warning(num_layers: int, *, num_ranks: int) -> str:
    """Why it matters that BatchNorm layers are not synchronised; nothing where it does not."""
    if not num_layers or num_ranks < 2:
        return ""
    layers = "BatchNorm layer takes its" if num_layers == 1 else "BatchNorm layers take their"
    return (
        f"{num_layers} {layers} statistics over each rank's own samples, so that what the model learns depends on the split: "
        "a plan with batch.sync_norm = true (resnet: --set norm=sync) takes them over all ranks, GroupNorm needs none."
    )


def _where(report: SweepReport) -> str:
    return f"on {report.cluster} ({report.label})"


def _against_default(report: SweepReport, default: Standing, best: Standing) -> str:
    rate, default_rate = format_rate(best.samples_per_s), format_rate(default.samples_per_s)
    if best.name == default.name or report.gain is None:
        return f"{DEFAULT} is the fastest plan found {_where(report)}: {report.workload} trains at {default_rate} samples/s. Keep it."
    amount = f"{format_times(report.gain)} the default (95 % interval {format_interval(*report.gain_interval)})"
    if best.verdict == "faster":
        return (
            f"{DEFAULT} leaves {format_percent(1 - 1 / report.gain)} of the speed on the table: "
            f"{_where(report)} {report.workload} trains at {default_rate} samples/s with it and at {rate} samples/s "
            f"with the best plan. That is {amount}: faster."
        )
    if best.verdict == TOO_FEW:
        return (
            f"{_count(report.num_rounds, 'round')} cannot decide whether the best plan found is faster than the default (torch DDP, "
            f"even split) {_where(report)}: {report.workload} trains at {default_rate} samples/s with the default, and the "
            f"best plan is {amount}: {TOO_FEW}. Compare again with --rounds {MIN_ROUNDS} or more, under another --study."
        )
    other = next((row.name for row in report.comparison if row.verdict == "faster"), "")
    advice = f"{other} is faster: use that." if other else "Keep the default."
    return (
        f"The best plan found is no faster than the default (torch DDP, even split) {_where(report)}: "
        f"{report.workload} trains at {default_rate} samples/s with the default, and the best plan is {amount}: "
        f"{best.verdict}. {advice}"
    )


def _without_default(report: SweepReport, best: Standing) -> str:
    sentence = (
        f"{DEFAULT} {report.default_problem}. The best plan trains {report.workload} {_where(report)} "
        f"at {format_rate(best.samples_per_s)} samples/s"
    )
    if best.vs_first is None:
        return f"{sentence}."
    interval = format_interval(best.vs_first.low, best.vs_first.high)
    first = report.comparison[0].name
    return f"{sentence}: {format_times(best.vs_first.value)} {first} (95 % interval {interval}): {best.verdict}."


def _not_compared(report: SweepReport, best: Standing) -> str:
    ended = f"The sweep ended before its final comparison, after {_count(sum(report.counts.values()), 'trial')}."
    speed = format_rate(best.samples_per_s)
    rate = f"The best plan so far trains {report.workload} {_where(report)} at {speed} samples/s"
    if report.gain is None:
        return f"{ended} {rate}. {DEFAULT} {report.default_problem}."
    if best == report.default:
        return f"{ended} So far nothing is faster than the default (torch DDP, even split): {speed} samples/s."
    return f"{ended} {rate}: {format_times(report.gain)} the default, from single trials and so without an interval."


def _nothing_measured(report: SweepReport) -> str:
    ended = ", ".join(f"{count} {state}" for state, count in report.counts.items() if count)
    if not ended:
        return f"No plan has been measured yet for {report.workload} {_where(report)}."
    sentence = f"No plan could be measured for {report.workload} {_where(report)}: {ended}."
    reason = next((row.reason for row in report.trials if row.reason), "")
    return f"{sentence} First reason: {reason}" if reason else sentence


def _about_tuned(report: SweepReport) -> str:
    best = report.best
    if best is None or best.vs_tuned is None or best.name == DDP_DEFAULT:
        return ""
    tuned = next(row for row in report.comparison if row.name == DDP_TUNED)
    if tuned is report.comparison[0]:
        return ""
    interval = format_interval(best.vs_tuned.low, best.vs_tuned.high)
    return (
        f"Tuned DDP reaches {format_rate(tuned.samples_per_s)} samples/s: "
        f"the best plan is {format_times(best.vs_tuned.value)} that ({interval}): {best.vs_tuned.verdict}."
    )


def _about_limit(report: SweepReport) -> str:
    if report.limit is None:
        return ""
    fastest = format_ms(report.limit.step_s)
    sentence = (
        f"No lossless plan can take less than {fastest} ms per step here without stages, whichever devices it uses: "
        f"{BINDS[report.limit_part]}."
    )
    if report.best is None or report.best.fraction_of_limit is None:
        return sentence
    return f"{sentence} The best plan is at {format_percent(report.best.fraction_of_limit)} of that speed."


def left_out(ranks: Sequence[int], step_with_s: float | None, step_s: float) -> str:
    """Why a plan does not use these ranks. `step_with_s`: the fastest step measured with them."""
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    if step_with_s is None:
        return f"The best plan leaves out {which}: no plan that uses it could be measured."
    return (
        f"The best plan leaves out {which}: the fastest plan measured with it takes {format_ms(step_with_s)} ms per step, "
        f"this one {format_ms(step_s)} ms."
    )


def _about_kept(report: SweepReport) -> str:
    if report.kept in ("", BEST):
        return ""
    few = report.best is not None and report.best.verdict == TOO_FEW
    why = (
        "the rounds are too few to decide whether the search's is faster"
        if few
        else "the search's best plan is not faster beyond noise"
    )
    return f"Kept for reuse: {report.kept}, because {why}."


def _about_loss(report: SweepReport) -> str:
    if report.best is None or report.best.is_lossless:
        return ""
    codecs = codecs_text(report.best.plan.compression)
    return f"The best plan sends gradients as {codecs}, which loses precision: check that your loss still falls."


def _late(report: SweepReport) -> list[str]:
    lines = []
    if report.best is not None:
        lines.append(_late_rank("best plan", report.best, "its figures are pessimistic"))
    if report.default is not None and report.default != report.best:
        lines.append(_late_rank("default", report.default, "the gain over it is flattered"))
    return lines


def _late_rank(name: str, standing: Standing, consequence: str) -> str:
    worst = max(standing.ranks, key=lambda rank: rank.late_s, default=None)
    if worst is None or worst.late_s <= LATE_FRACTION * standing.step_s:
        return ""
    return (
        f"The machine could not keep the emulated pace: under the {name}, rank {worst.rank} ran "
        f"{format_ms(worst.late_s)} ms late in a step of {format_ms(standing.step_s)} ms, so {consequence} "
        "and not to be trusted. Free the machine, or emulate slower devices."
    )


def _few_rounds(report: SweepReport) -> str:
    if not report.comparison or report.num_rounds >= MIN_ROUNDS:
        return ""
    return (
        f"Only {_count(report.num_rounds, 'round')} compared: a 95 % interval needs {MIN_ROUNDS} or more, "
        "so there are no verdicts."
    )


def _noisy(report: SweepReport) -> str:
    if report.noise is None or report.noise.vs_first is None or report.noise.verdict in (NO_DIFFERENCE, TOO_FEW):
        return ""
    apart = abs(report.noise.vs_first.value - 1)
    return (
        f"{report.comparison[0].name} measured twice differs from itself by {apart * 100:.1f} %: "
        "differences of that size or less mean nothing."
    )


def _beyond_limit(report: SweepReport) -> str:
    beyond = [row.name for row in report.comparison if row.is_lossless and (row.fraction_of_limit or 0) > ABOVE_LIMIT]
    if not beyond:
        return ""
    return f"Faster than the limit: {', '.join(beyond)}. The stated device or link speeds are not what really ran."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
