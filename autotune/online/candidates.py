"""The candidates of retuning: communication configurations for the current split.

A grid over partition size, credit, priority, cross-step overlap, codec and collective, and plain buckets. The default is
always a candidate. The grid is coarser than a search space, because a window cannot resolve smaller differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from autotune.space.comm_knobs import CROSS_STEP, MIN_BUCKET_LOG2
from autotune.space.space import Space
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CODECS, BatchPlan, CommPlan, Plan, Priority, ReducerKind

_MOST_PARTS_LOG2 = 8
"""Partitions are at least 1/256 of the model, since every message has a fixed cost."""
_SIZE_STEP = 2
"""Log2 step between partition sizes."""
_CREDITS = ("1 partitions", "4 partitions", "16 partitions")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Plans, and the index of the default."""

    plans: tuple[Plan, ...]
    default: int = 0

    def index(self, plan: Plan) -> int:
        """The index of a plan."""
        if plan not in self.plans:
            raise SpecError(
                f"the plan {plan.fingerprint()} is not among {len(self.plans)} candidates: pass it in `also`"
            )
        return self.plans.index(plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retunable:
    """The parts of a plan that may change while training."""

    samples: bool = True
    partition: bool = True
    """Reducer, bucket and partition sizes, credit, priority and cross-step overlap."""
    codec: bool = True
    collective: bool = True
    """A ring or owner shards, and their owners."""

    def allow(self, plan: Plan, running: Plan) -> bool:
        """Whether a plan differs from the running plan in these parts only, not counting samples."""
        free = (*(_COLLECTIVE if self.collective else ()), *(_PARTITION if self.partition else ()))
        alike: dict[str, Any] = {name: getattr(running.comm, name) for name in free}
        if plan.comm.collective == running.comm.collective:
            alike["shares"] = running.comm.shares  # owners are assigned later, from the links
        same_codec = self.codec or plan.compression == running.compression
        return same_codec and replace(plan.comm, **alike) == running.comm


RETUNE_ALL = Retunable()
_COLLECTIVE = ("collective", "shares")
_PARTITION = ("reducer", "bucket_bytes", "partition_bytes", "credit_bytes", "priority", "crosses_steps")


def candidates(
    space: Space, samples: tuple[int, ...], *, transport: str, default: Plan | None = None, also: Sequence[Plan] = ()
) -> Candidates:
    """The default first, then `also` (the plan that runs now), then the grid; each plan once.

    `default`: the plan to fall back to; by default the bucketed reducer with the bucket size of torch DDP. A plan of `also`
    with codecs by kind of layer adds the scheduled plans of the grid with its own compression.
    """
    first = default or default_candidate(samples, transport=transport)
    grid = list(_grid(space, samples, transport))
    by_kind = dict.fromkeys(plan.compression for plan in also if plan.compression.by_kind)
    with_kinds = [
        replace(plan, compression=compression) for compression in by_kind for plan in grid if plan.comm.is_scheduled
    ]
    return Candidates(plans=tuple(dict.fromkeys([first, *also, *grid, *with_kinds])))


def default_candidate(samples: tuple[int, ...], *, transport: str) -> Plan:
    """The buckets of torch DDP, by a reducer that training can switch to and from."""
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(transport=transport))


def _grid(space: Space, samples: tuple[int, ...], transport: str) -> Iterator[Plan]:
    largest = space.max_bucket_log2
    smallest = max(MIN_BUCKET_LOG2, largest - _MOST_PARTS_LOG2)
    sizes = range(largest, smallest - 1, -_SIZE_STEP)
    for size, codec, collective, reducer in product(sizes, space.codecs, space.collectives, space.reducers):
        if reducer == ReducerKind.BUCKETED and not CODECS[codec].is_one_round:
            continue  # the space would replace the codec by one that may not be allowed
        for credit in _CREDITS if reducer != ReducerKind.BUCKETED else _CREDITS[:1]:
            if _is_more_than_all(credit, largest - size):
                continue
            knobs = {"bucket_log2": size, "codec": codec, "transport": transport, "collective": collective}
            plan = space.with_knobs(samples, knobs | {"reducer": reducer, "credit": credit})
            yield plan
            if reducer == CROSS_STEP:  # behind a barrier the order has no effect
                yield replace(plan, comm=replace(plan.comm, priority=Priority.FIFO.value))


def _is_more_than_all(credit: str, parts_log2: int) -> bool:
    """Whether a credit is at least four times the model: it has the same effect as a smaller one."""
    return int(credit.split(maxsplit=1)[0]) >= 4 * (1 << parts_log2)
