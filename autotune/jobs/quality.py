"""The quality guard: a search uses a lossy codec only if training with it matches training without it.

Two models start alike and train on the same batches, one with plain gradients, one with the codec. After so many steps both
must have moved in nearly the same direction, and the codec's loss must have fallen nearly as far. One step is not enough: with
error feedback, what one step leaves out is sent in a later one.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.jobs.context import JobContext
from autotune.results.show.watcher import Watcher
from autotune.runtime.trial.runner import Budget
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan, ReducerKind, lossless_codecs
from autotune.workloads.split import even

STEPS = 20
LEAST_COSINE = 0.9
MOST_LOST = 0.1
"""Of what the loss fell by without the codec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What a codec did to training."""

    plan: Plan
    cosine: float
    """Between what training changed with the codec and without."""
    first_loss: float
    plain_loss: float
    loss: float
    """Mean over the last quarter of the steps."""

    @property
    def lost(self) -> float:
        """The share of the plain training's progress that the codec did not make."""
        progress = self.first_loss - self.plain_loss
        return (self.loss - self.plain_loss) / progress if progress > 0 else 0.0

    @property
    def holds(self) -> bool:
        return self.cosine >= LEAST_COSINE and self.lost <= MOST_LOST

    def __str__(self) -> str:
        comm, verdict = self.plan.comm, "passes" if self.holds else "is refused by"
        averaged = f"averaging every {comm.average_every} steps" if comm.reducer == ReducerKind.AVERAGED else ""
        return (
            f"{averaged or f'codec {self.plan.compression.codec}'} {verdict} the quality guard: after {STEPS} steps cosine {self.cosine:.3f} "
            f"(at least {LEAST_COSINE}), {self.lost:.0%} of the progress lost (at most {MOST_LOST:.0%})"
        )


def guarded_codecs(context: JobContext, watcher: Watcher, *, timeout_s: float) -> tuple[str, ...]:
    """The codecs that may be searched with; the others are reported with the reason."""
    passed = []
    for codec in context.codecs:
        if codec not in lossless_codecs():
            quality = judge(context, CompressionPlan(codec=codec), timeout_s=timeout_s)
            if not quality.holds:
                watcher.phase(str(quality))
                continue
        passed.append(codec)
    return tuple(passed)


SCHEDULED = CommPlan(reducer="scheduled")


def judge(
    context: JobContext, compression: CompressionPlan, comm: CommPlan = SCHEDULED, *, timeout_s: float
) -> Quality:
    """Train both models on all ranks."""
    samples = even(context.info.global_batch, context.limits)
    plan = Plan(batch=BatchPlan(samples=samples), comm=comm, compression=compression)
    budget = Budget(warmup=0, steps=STEPS, timeout_s=timeout_s, traced=False)
    cosine, plain, coded = context.workers.quality(plan, budget)
    last = max(STEPS // 4, 1)
    return Quality(
        plan=plan,
        cosine=cosine,
        first_loss=plain[0],
        plain_loss=sum(plain[-last:]) / last,
        loss=sum(coded[-last:]) / last,
    )
