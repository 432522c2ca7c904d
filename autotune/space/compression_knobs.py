"""Knobs of what gradients look like on the wire: the codec, the layers it is for, sufficient factors."""

from __future__ import annotations

from autotune.space.comm_knobs import is_scheduled
from autotune.space.knob import Knob, Reset, Scope, Values, with_compression
from autotune.workloads.plan import CODECS, KindCodec, Plan, lossless_codecs

ALL_LAYERS = "all"
"""Of the knob "compressed", which else names the one kind of layers that has the codec."""
NARROW = "fp16"
"""What is sent in the place of a codec that plain buckets cannot send."""


def _write_codec(plan: Plan, value: str, _scope: Scope) -> Plan:
    return with_compression(plan, codec=value if is_scheduled(plan) or CODECS[value].is_one_round else NARROW)


def _reset_codec(best: Plan, default: Plan) -> list[Reset]:
    codec = default.compression.codec
    return [Reset(title="codec", text=f"codec {codec}", plan=with_compression(best, codec=codec, by_kind=()))]


def _kinds(scope: Scope) -> Values:
    is_lossy = scope.reducers != ("bucketed",) and not set(scope.codecs) <= set(lossless_codecs())
    return Values(choices=(ALL_LAYERS, *(scope.kinds if is_lossy else ())))


def _write_kind(plan: Plan, value: str, _scope: Scope) -> Plan:
    codec = plan.compression.codec
    if value == ALL_LAYERS or CODECS[codec].is_lossless:
        return plan
    return with_compression(plan, codec="none", by_kind=(KindCodec(kind=value, codec=codec),))


def _read_kind(plan: Plan) -> str:
    by_kind = plan.compression.by_kind
    return by_kind[0].kind if by_kind else ALL_LAYERS


def _write_factors(plan: Plan, value: str, scope: Scope) -> Plan:
    if value == "no" or scope.factors_for is None:
        return plan
    return with_compression(plan, factors=scope.factors_for(plan.batch.samples))


def _reset_factors(best: Plan, _default: Plan) -> list[Reset]:
    return [Reset(title="sufficient factors", text="no sufficient factors", plan=with_compression(best, factors=()))]


CODEC = Knob(
    name="codec",
    text="what gradients look like on the wire",
    values=lambda scope: Values(choices=scope.codecs),
    write=_write_codec,
    read=lambda plan: plan.compression.codecs[-1],
    after=("reducer",),
    resets=_reset_codec,
    is_always_searched=True,
)
FACTORS = Knob(
    name="factors",
    text="whether Linear layers send sufficient factors where these are fewer bytes",
    values=lambda scope: Values(
        choices=("no", "yes") if scope.reducers != ("bucketed",) and scope.factors_for is not None else ("no",)
    ),
    write=_write_factors,
    read=lambda plan: "yes" if plan.compression.factors else "no",
    applies=is_scheduled,
    after=("reducer",),
    resets=_reset_factors,
)
COMPRESSED = Knob(
    name="compressed",
    text="the kind of layers that has the codec, or all",
    values=_kinds,
    write=_write_kind,
    read=_read_kind,
    applies=is_scheduled,
    after=("codec",),
)
