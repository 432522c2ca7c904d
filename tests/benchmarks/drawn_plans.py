"""Random plans over every knob that a job can run, good and bad ones.

Splits of half to twice what each device's speed calls for. Every second plan is scheduled: any partition, a credit of 1 to
16 of them, by layer or fifo, with or without cross-step overlap, every codec, some with sufficient factors. The others
are DDP and our buckets of every size. Sums by ring, or where we do them ourselves by shards, or within hosts first where
hosts have several ranks. Conflicts between knobs are resolved, so that every plan is valid.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from autotune.space.comm_knobs import MIN_BUCKET_LOG2
from autotune.space.space import Space
from autotune.workloads.plan import (
    CODECS,
    COLLECTIVES,
    BatchPlan,
    CommPlan,
    CompressionPlan,
    Plan,
    Priority,
    one_round_codecs,
)
from autotune.workloads.split import proportional

MOST_CREDIT = 16
"""In partitions."""
FLAT = ("ring", "ring", "shards")
SCHEDULED_CODECS = ("none", "none", "none", *list(CODECS)[1:])
SENDS_FACTORS = 1 / 3


def drawn_plans(space: Space, linear: Sequence[str], count: int, seed: str) -> list[Plan]:
    """`linear`: the layers that can send factors. A seed is a name, such as "lab/gpt@mixed4"; equal seeds, equal plans."""
    draw = random.Random(seed)
    plans: dict[Plan, None] = {}
    plain_first = draw.random() < 0.5
    while len(plans) < count:
        weights = [speed * 2 ** draw.uniform(-1, 1) for speed in space.reference]
        samples = proportional(weights, space.global_batch, space.limits)
        is_plain = plain_first == (len(plans) % 2 == 0)
        plan = _plain(draw, space, samples) if is_plain else _scheduled(draw, space, samples, linear)
        plans[plan] = None
    return list(plans)


def _plain(draw: random.Random, space: Space, samples: tuple[int, ...]) -> Plan:
    reducer = draw.choice(("ddp", "bucketed", "bucketed"))
    collective = _collective(draw, space) if reducer == "bucketed" else "ring"
    return Plan(
        batch=BatchPlan(samples=samples),
        comm=CommPlan(
            reducer=reducer,
            transport=_transport(draw, space, needs_messages=collective != "ring"),
            bucket_bytes=_size(draw, space),
            collective=collective,
        ),
        compression=CompressionPlan(codec=draw.choice(("none", "fp16") if reducer == "ddp" else one_round_codecs())),
    )


def _scheduled(draw: random.Random, space: Space, samples: tuple[int, ...], linear: Sequence[str]) -> Plan:
    codec, collective, partition_bytes = draw.choice(SCHEDULED_CODECS), _collective(draw, space), _size(draw, space)
    factors = _factors(draw, space, samples, linear) if linear and draw.random() < SENDS_FACTORS else ()
    needs_messages = collective != "ring" or CODECS[codec].needs_messages or bool(factors)
    return Plan(
        batch=BatchPlan(samples=samples),
        comm=CommPlan(
            reducer="scheduled",
            transport=_transport(draw, space, needs_messages=needs_messages),
            collective=collective,
            partition_bytes=partition_bytes,
            credit_bytes=partition_bytes * draw.randint(1, MOST_CREDIT),
            priority=draw.choice(list(Priority)).value,
            crosses_steps=draw.random() < 0.5,
        ),
        compression=CompressionPlan(codec=codec, factors=factors),
    )


def _collective(draw: random.Random, space: Space) -> str:
    return draw.choice((*FLAT, *(name for name in space.collectives if COLLECTIVES[name].sums_in_hosts)))


def _size(draw: random.Random, space: Space) -> int:
    return int(2 ** draw.randint(MIN_BUCKET_LOG2, space.max_bucket_log2))


def _transport(draw: random.Random, space: Space, *, needs_messages: bool) -> str:
    return "gloo" if needs_messages else draw.choice(space.transports)


def _factors(draw: random.Random, space: Space, samples: tuple[int, ...], linear: Sequence[str]) -> tuple[str, ...]:
    """The layers for which they pay, else one for which they do not."""
    paying = space.factors_for(samples) if space.factors_for is not None else ()
    return paying or (draw.choice(linear),)
