"""From a study's records to its report. Pure: records in, a SweepReport out, nothing shown.

Speeds come from the interleaved comparison where there is one. An interrupted sweep has none; then the best and the
default are taken from their trials, and no interval is claimed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from autotune.profilers.breakdown import Breakdown, largest_costs
from autotune.results.judge import wording
from autotune.results.judge.compare import ratio, winner
from autotune.results.judge.report_data import ClusterRow, KnobRow, RankRow, Standing, SweepReport, TrialRow
from autotune.results.judge.reuse import next_commands
from autotune.results.store.record import (
    AGAIN,
    BEST,
    DDP_DEFAULT,
    DDP_TUNED,
    Comparison,
    Contender,
    Limit,
    RankResult,
    Role,
    StudyInfo,
    TrialRecord,
    TrialState,
)
from autotune.results.text.cluster_text import cluster_tree
from autotune.results.text.numbers import plan_summary
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


def build_report(
    info: StudyInfo,
    records: Sequence[TrialRecord],
    comparison: Comparison | None,
    best_file: str | None,
    *,
    results: Path | None = None,
) -> SweepReport:
    """The report of a sweep, finished or not. `results`: its folder, for the commands in the report."""
    contenders = tuple(one for one in comparison.contenders if one.rounds_s) if comparison else ()
    standings = _comparison_rows(info, contenders)
    default, best = _from_comparison(standings) if standings else _from_trials(info, records)
    gain, gain_interval = _gain(default, best)
    num_ranks = len(best.plan.batch.samples) if best else len(info.cluster.devices)
    breakdown = _breakdown(records, best)
    report = SweepReport(
        study=info.name,
        workload=info.workload.name,
        cluster=info.cluster.name,
        label=info.cluster.label,
        num_ranks=num_ranks,
        global_batch=info.workload.global_batch,
        counts={state.value: sum(record.state is state for record in records) for state in TrialState},
        trials=_trial_rows(info, records),
        default_problem="" if default else _default_problem(records),
        default=default,
        best=best,
        gain=gain,
        gain_interval=gain_interval,
        comparison=standings,
        noise=_noise(info, contenders),
        num_rounds=min((len(one.rounds_s) for one in contenders), default=0),
        steps_per_round=comparison.steps_per_round if comparison else 0,
        knobs=_knob_rows(contenders),
        searched=_searched(records),
        ranks=_rank_rows(default, best),
        breakdown=breakdown,
        costs=largest_costs(breakdown) if breakdown else (),
        limit=info.limit,
        limit_part=_binding_part(info.limit) if info.limit else "",
        model_error=_model_error(records),
        kept=winner(comparison).name if comparison and contenders else "",
        best_file=best_file,
        command=info.command,
        environment=info.environment,
        tree=None if info.cluster.topology.is_one_switch else cluster_tree(info.cluster),
        commands=next_commands(
            info, num_ranks=num_ranks, best_file=best_file, finished=bool(standings), results=results
        ),
    )
    return dataclasses.replace(
        report,
        headline=wording.headline(report),
        findings=(*wording.findings(report), *_about_left_out(records, best)),
        warnings=(*wording.warnings(report), *_about_norms(info, best)),
    )


def _searched(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """The knobs that trials of the search have set, one entry for the shares of all ranks."""
    return tuple(dict.fromkeys(name.partition(".")[0] for record in records for name in record.params))


def _about_left_out(records: Sequence[TrialRecord], best: Standing | None) -> tuple[str, ...]:
    """Why the best plan does not use a rank: the fastest plan that was measured with it."""
    if best is None or not best.plan.leaves_out:
        return ()
    used, found = set(best.plan.used_ranks), dict[float | None, list[int]]()
    for rank in range(len(best.plan.batch.samples)):
        if rank not in used:
            steps = [one.step_s for one in records if one.step_s is not None and rank in one.plan.used_ranks]
            found.setdefault(min(steps, default=None), []).append(rank)
    return tuple(wording.left_out(ranks, step_s, best.step_s) for step_s, ranks in found.items())


def _about_norms(info: StudyInfo, best: Standing | None) -> tuple[str, ...]:
    if best is None or best.plan.batch.sync_norm:
        return ()
    text = wording.local_norms_warning(info.workload.num_local_norms, num_ranks=len(best.plan.batch.samples))
    return (text,) if text else ()


def rank_clusters(reports: Sequence[SweepReport]) -> tuple[ClusterRow, ...]:
    """Several clusters of one workload, the fastest first; clusters without a measured plan last."""
    if len(names := sorted({report.workload for report in reports})) > 1:
        found = ", ".join(names)
        raise SpecError(f"clusters were tuned for {found}: speeds compare within one workload, so rank each by itself")
    ordered = sorted(reports, key=lambda report: -report.best.samples_per_s if report.best else 0.0)
    return tuple(_cluster_row(place, report) for place, report in enumerate(ordered, start=1))


def _cluster_row(place: int, report: SweepReport) -> ClusterRow:
    best, default = report.best, report.default
    problem = f"the default {report.default_problem}" if report.default_problem else ""
    return ClusterRow(
        place=place,
        cluster=report.cluster,
        label=report.label,
        samples_per_s=best.samples_per_s if best else None,
        step_s=best.step_s if best else None,
        default_samples_per_s=default.samples_per_s if default else None,
        gain=report.gain,
        gain_interval=report.gain_interval,
        fraction_of_limit=best.fraction_of_limit if best else None,
        plan=best.summary if best else "",
        note=problem if best else report.headline,
    )


def _standing(info: StudyInfo, name: str, plan: Plan, step_s: float, ranks: tuple[RankResult, ...]) -> Standing:
    return Standing(
        name=name,
        plan=plan,
        summary=plan_summary(plan),
        is_lossless=plan.is_lossless,
        step_s=step_s,
        samples_per_s=info.workload.global_batch / step_s,
        cpu_s_per_step=sum(rank.cpu_s for rank in ranks) if ranks else None,
        fraction_of_limit=info.limit.share(plan, step_s) if info.limit else None,
        ranks=ranks,
    )


def _comparison_row(info: StudyInfo, contender: Contender, first: Contender, tuned: Contender | None) -> Standing:
    row = _standing(info, contender.name, contender.plan, median(contender.rounds_s), contender.ranks)
    vs_first = None if contender is first else ratio(first, contender)
    vs_tuned = None if tuned is None or contender is tuned else ratio(tuned, contender)
    return dataclasses.replace(row, vs_first=vs_first, verdict=vs_first.verdict if vs_first else "", vs_tuned=vs_tuned)


def _comparison_rows(info: StudyInfo, contenders: Sequence[Contender]) -> tuple[Standing, ...]:
    main = [one for one in contenders if not one.reverts and not one.name.endswith(AGAIN)]
    return tuple(_comparison_row(info, one, main[0], _named(contenders, DDP_TUNED)) for one in main)


def _noise(info: StudyInfo, contenders: Sequence[Contender]) -> Standing | None:
    again = next((one for one in contenders if one.name.endswith(AGAIN)), None)
    first = _named(contenders, again.name.removesuffix(AGAIN)) if again else None
    return _comparison_row(info, again, first, None) if again and first else None


def _knob_rows(contenders: Sequence[Contender]) -> tuple[KnobRow, ...]:
    """Most valuable first."""
    if (best := _named(contenders, BEST)) is None:
        return ()
    rows = []
    for reverted in (one for one in contenders if one.reverts):
        worth = ratio(reverted, best)
        row = KnobRow(
            knob=reverted.reverts,
            reverted_plan=plan_summary(reverted.plan),
            reverted_step_s=median(reverted.rounds_s),
            worth=worth,
            verdict=worth.verdict,
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: -row.worth.value))


def _named(contenders: Sequence[Contender], name: str) -> Contender | None:
    return next((one for one in contenders if one.name == name), None)


def _from_comparison(comparison: Sequence[Standing]) -> tuple[Standing | None, Standing | None]:
    """The default, if it could run, and the best plan: the one that the search chose, else whichever is fastest."""
    default = comparison[0] if comparison[0].name == DDP_DEFAULT else None
    chosen = next((row for row in comparison if row.name == BEST), None)
    return default, chosen or min(comparison, key=lambda row: row.step_s)


def _from_trials(info: StudyInfo, records: Sequence[TrialRecord]) -> tuple[Standing | None, Standing | None]:
    names = {Role.DEFAULT: DDP_DEFAULT, Role.PEER: DDP_TUNED, Role.SEARCH: BEST, Role.SERVERS: BEST}
    measured = [
        (record.role, _standing(info, names[record.role], record.plan, record.step_s, record.ranks))
        for record in records
        if record.step_s is not None
    ]
    default = next((standing for role, standing in measured if role is Role.DEFAULT), None)
    return default, min((standing for _, standing in measured), key=lambda standing: standing.step_s, default=None)


def _gain(default: Standing | None, best: Standing | None) -> tuple[float | None, tuple[float, ...]]:
    """The best plan's speed over the default's, with its interval where the two met in the comparison."""
    if default is None or best is None:
        return None, ()
    if best.vs_first is not None:
        return best.vs_first.value, (best.vs_first.low, best.vs_first.high)
    return default.step_s / best.step_s, ()


def _default_problem(records: Sequence[TrialRecord]) -> str:
    trial = next((record for record in records if record.role is Role.DEFAULT), None)
    if trial is None or trial.state is TrialState.COMPLETE:
        return "was not measured"
    what = "does not fit the devices" if trial.state is TrialState.INFEASIBLE else trial.state.value
    return f"{what}: {trial.reason or 'no reason was recorded'}".rstrip(".")


def _trial_rows(info: StudyInfo, records: Sequence[TrialRecord]) -> tuple[TrialRow, ...]:
    default_s = next((r.step_s for r in records if r.role is Role.DEFAULT and r.step_s is not None), None)
    ordered = sorted(records, key=lambda record: (record.step_s is None, record.step_s or 0.0, record.number))
    return tuple(_trial_row(info, record, default_s) for record in ordered)


def _trial_row(info: StudyInfo, record: TrialRecord, default_s: float | None) -> TrialRow:
    step_s = record.step_s
    return TrialRow(
        number=record.number,
        role=record.role.value,
        plan=record.plan,
        summary=plan_summary(record.plan),
        step_s=step_s,
        samples_per_s=info.workload.global_batch / step_s if step_s else None,
        cpu_s_per_step=record.cpu_s_per_step if record.ranks else None,
        ratio_to_default=default_s / step_s if default_s and step_s else None,
        state=record.state.value,
        reason=record.reason,
        predicted_step_s=record.predicted.step_s,
        peak_memory_bytes=max((rank.peak_memory_bytes for rank in record.ranks), default=None),
        predicted_peak_memory_bytes=record.predicted.peak_memory_bytes,
    )


def _rank_rows(default: Standing | None, best: Standing | None) -> tuple[RankRow, ...]:
    ours = {result.rank: result for result in best.ranks} if best else {}
    theirs = {result.rank: result for result in default.ranks} if default else {}
    devices = {rank: result.device for rank, result in (theirs | ours).items()}
    return tuple(
        RankRow(rank=rank, device=devices[rank], default=theirs.get(rank), best=ours.get(rank))
        for rank in sorted(devices)
    )


def _breakdown(records: Sequence[TrialRecord], best: Standing | None) -> Breakdown | None:
    """That of the best plan's trial."""
    traced = (r.breakdown for r in records if best and r.plan == best.plan and r.breakdown is not None)
    return next(traced, None)


def _binding_part(limit: Limit) -> str:
    parts = {"compute": limit.compute_s, "network": limit.network_s, "path": limit.path_s}
    return max(parts, key=parts.__getitem__)


def _model_error(records: Sequence[TrialRecord]) -> float | None:
    errors = [
        abs(record.predicted.step_s - record.step_s) / record.step_s
        for record in records
        if record.step_s is not None and record.predicted.step_s is not None
    ]
    return median(errors) if errors else None
