"""The comparison that ends a sweep: interleaved rounds within one job, so that what disturbs the machine disturbs all plans.

The default takes part twice, which shows the noise. Tuned DDP is the peer to beat. Ablation: the best plan also runs with one
knob at a time reset to the default; what it loses is what the knob was worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.results.judge.selection import fastest
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, Contender, Role, TrialRecord
from autotune.runtime.trial.workers import Measurement
from autotune.space.knob import Reset
from autotune.space.space import resets
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import PipelinePlan, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan to compare, and the knob that it resets, if it is an ablation."""

    name: str
    plan: Plan
    reverts: str = ""


def entries(records: Sequence[TrialRecord], best: Plan) -> list[Entry]:
    """Who is compared with whom, in order."""
    default, peer = fastest(records, Role.DEFAULT), fastest(records, Role.PEER)
    chosen = []
    if default is not None:
        chosen.append(Entry(name=DDP_DEFAULT, plan=default.plan))
    if peer is not None:
        chosen.append(Entry(name=DDP_TUNED, plan=peer.plan))
    chosen.append(Entry(name=BEST, plan=best))
    if default is not None:
        chosen += reverted(best, default.plan)
        chosen.append(Entry(name=DDP_DEFAULT + AGAIN, plan=default.plan))
    return chosen


def reverted(best: Plan, default: Plan) -> list[Entry]:
    """The best plan with one knob at a time as in the default; knobs that are so anyway are left out."""
    found = resets(best, default) if best.pipeline is None else _reset_stages(best, best.pipeline)
    if best.embedding is not None:
        everywhere = dataclasses.replace(best, embedding=None)
        found.append(Reset(title="embedding servers", text="tables on every rank", plan=everywhere))
    return [Entry(name=f"{BEST}, {one.text}", plan=one.plan, reverts=one.title) for one in found if _runs(one.plan)]


def _reset_stages(best: Plan, pipeline: PipelinePlan) -> list[Reset]:
    """A pipeline in the usual order instead of its own."""
    usual = dataclasses.replace(best, pipeline=dataclasses.replace(pipeline, schedule="1f1b", order=()))
    return [Reset(title="schedule", text="1f1b", plan=usual)] if usual != best else []


def contenders(chosen: Sequence[Entry], measured: Sequence[Measurement]) -> tuple[Contender, ...]:
    """The entries with what they measured."""
    return tuple(
        Contender(name=e.name, plan=e.plan, rounds_s=m.steps_s, ranks=m.ranks, reverts=e.reverts)
        for e, m in zip(chosen, measured, strict=True)
    )


def _runs(plan: Plan) -> bool:
    """Not every reducer takes every codec, not every transport every collective, and DDP no rank without samples."""
    try:
        plan.validate(num_ranks=len(plan.batch.samples), global_batch=plan.global_batch)
        plan.check_runnable()
    except SpecError:
        return False
    return True
