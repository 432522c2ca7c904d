"""The plans that retuning chooses from: how gradients travel, for the split as it is.

A grid over partition, credit, priority, crossing, codec and collective, beside plain buckets; the default is always one of
them, so that choosing never ends below it. Coarser than a search's space: neighbours differ by less than a window shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from autotune.space.space import MIN_BUCKET_LOG2, Knobs, Space
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import ONE_ROUND_CODECS, BatchPlan, CommPlan, Plan

_MOST_PARTS_LOG2 = 8
"""No partition is smaller than the model over 256: a part has costs of its own."""
_SIZE_STEP = 2
"""Partitions differ by factors of 4."""
_CREDITS = ("1 parts", "4 parts", "16 parts")
_FIFO = "fifo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Plans, and which of them is the default."""

    plans: tuple[Plan, ...]
    default: int = 0

    def index(self, plan: Plan) -> int:
        """Where a plan stands among them."""
        if plan not in self.plans:
            raise SpecError(
                f"the plan {plan.fingerprint()} is not among {len(self.plans)} candidates: pass it in `also`"
            )
        return self.plans.index(plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What of a plan may change while training."""

    samples: bool = True
    partition: bool = True
    """Buckets or a schedule, their sizes, credit, priority and crossing."""
    codec: bool = True
    collective: bool = True
    """A ring or shards, and who owns them."""

    def allow(self, plan: Plan, running: Plan) -> bool:
        """Whether a plan differs from the one that runs in these parts only; samples aside."""
        free = (*(_COLLECTIVE if self.collective else ()), *(_PARTITION if self.partition else ()))
        alike: dict[str, Any] = {name: getattr(running.comm, name) for name in free}
        if plan.comm.collective == running.comm.collective:
            alike["shares"] = running.comm.shares  # candidates are given owners later, as links call for
        same_codec = self.codec or plan.compression == running.compression
        return same_codec and replace(plan.comm, **alike) == running.comm


ALL_PARTS = Parts()
_COLLECTIVE = ("collective", "shares")
_PARTITION = ("reducer", "bucket_bytes", "partition_bytes", "credit_bytes", "priority", "crosses_steps")


def candidates(
    space: Space, samples: tuple[int, ...], *, transport: str, default: Plan | None = None, also: Sequence[Plan] = ()
) -> Candidates:
    """The default first, then `also` (the plan that runs now), then the grid, each plan once.

    `default`: what training falls back to; buckets as torch DDP has them, by our own reducer, unless given.
    """
    first = default or default_candidate(samples, transport=transport)
    plans = dict.fromkeys([first, *also, *_grid(space, samples, transport)])
    return Candidates(plans=tuple(plans))


def default_candidate(samples: tuple[int, ...], *, transport: str) -> Plan:
    """DDP's buckets: what people run today, in a form that can be switched to and from while training."""
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(transport=transport))


def _grid(space: Space, samples: tuple[int, ...], transport: str) -> Iterator[Plan]:
    largest = space.max_bucket_log2
    smallest = max(MIN_BUCKET_LOG2, largest - _MOST_PARTS_LOG2)
    sizes = range(largest, smallest - 1, -_SIZE_STEP)
    for size, codec, collective, reducer in product(sizes, space.codecs, space.collectives, space.reducers):
        if reducer == "bucketed" and codec not in ONE_ROUND_CODECS:
            continue  # the space would take another codec, which nobody may have allowed
        for credit in _CREDITS if reducer != "bucketed" else _CREDITS[:1]:
            if _is_more_than_all(credit, largest - size):
                continue
            knobs = Knobs(
                bucket_log2=size,
                codec=codec,
                transport=transport,
                reducer=reducer,
                credit=credit,
                collective=collective,
            )
            plan = space.with_knobs(samples, knobs)
            yield plan
            if reducer == "crossing":  # behind a barrier the order changes nothing
                yield replace(plan, comm=replace(plan.comm, priority=_FIFO))


def _is_more_than_all(credit: str, parts_log2: int) -> bool:
    """A credit of four times the model or more is the same plan as a smaller one."""
    return int(credit.split(maxsplit=1)[0]) >= 4 * (1 << parts_log2)
