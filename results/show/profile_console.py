"""A profile in a terminal: devices, their slowest ops, codecs, links, and collectives as nccl-tests prints them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune.results.show.report_tables import NAME_WIDTH, Column, Row, make_table
from autotune.results.store.fits import Fit, TransferFit, TransferRow, WorkFit
from autotune.results.store.profile import (
    CodecProfile,
    CollectiveProfile,
    HostLink,
    LinkProfile,
    OpProfile,
    Profile,
    RankProfile,
    StepPoint,
)
from autotune.results.text.numbers import MISSING, format_ms, format_number, format_percent
from autotune.workloads.plan import MIB
from autotune.workloads.quantity import format_bandwidth, format_bytes

TOP_OPS = 5
TOP_RANKS = 12
TOP_LINKS = 24
_MUCH = 0.05
_WIDTH = 10


@dataclass(frozen=True, slots=True)
class OpRow:
    """An op of one rank beside its share of all ops' time at the largest size measured."""

    rank: int
    op: OpProfile
    share: float


@dataclass(frozen=True, slots=True)
class CodecLine:
    """A codec on one rank."""

    rank: int
    codec: CodecProfile


def show_profile(console: Console, profile: Profile, path: Path) -> None:
    """Everything that was measured, with the error of each fit."""
    console.print(Text(f"Profile: {profile.workload} on {profile.cluster} ({profile.label})", style="bold"))
    ranks = profile.ranks[:TOP_RANKS]
    _table(console, f"Devices ({profile.label}): forward and backward = fixed + per sample", RANKS, ranks)
    if len(profile.ranks) > TOP_RANKS:
        _note(console, f"and {len(profile.ranks) - TOP_RANKS} more ranks")
    _table(console, "Slowest ops: fixed + per sample, us", OPS, [row for rank in ranks for row in slowest_ops(rank)])
    codecs = [CodecLine(rank.rank, codec) for rank in ranks for codec in rank.codecs]
    _table(console, "Codecs: fixed + bytes of gradient / bandwidth", CODECS, codecs)
    _table(console, "Links, one way: latency + bytes / bandwidth", LINKS, profile.links[:TOP_LINKS])
    if len(profile.links) > TOP_LINKS:
        _note(console, f"and {len(profile.links) - TOP_LINKS} more pairs")
    _table(console, "Hosts, concluded from the pairs", HOSTS, profile.hosts)
    for collective in profile.collectives:
        _show_collective(console, collective)
    for what, reason in profile.unavailable.items():
        _note(console, f"{what}: not measured: {reason}")
    for warning in warnings(profile):
        console.print(Text(f"Warning: {warning}", style="yellow"), soft_wrap=True)
    console.print(Text(f"\nkept in {path}", style="cyan"), soft_wrap=True)


def slowest_ops(rank: RankProfile) -> list[OpRow]:
    """Those that take most of the time at the largest size."""
    size = rank.compute.high
    seconds = {op.name: op.forward.seconds(size) + op.backward.seconds(size) for op in rank.ops}
    total_s = sum(seconds.values()) or 1.0
    slowest = sorted(rank.ops, key=lambda op: -seconds[op.name])[:TOP_OPS]
    return [OpRow(rank.rank, op, seconds[op.name] / total_s) for op in slowest]


def warnings(profile: Profile) -> list[str]:
    """What limits the figures."""
    found = []
    for rank in profile.ranks:
        if any(abs(_unattributed(step)) > _MUCH for step in rank.steps):
            found.append(f"rank {rank.rank}: the ops' sum is off the whole pass by up to {_worst_unattributed(rank)}")
        if any(step.late_s > _MUCH * step.compute_s for step in rank.steps):
            found.append(f"rank {rank.rank}: this machine is too slow for the emulated device: state a slower one")
    transfers: list[tuple[str, Sequence[TransferRow]]] = [
        *((f"{link.from_host} to {link.to_host}", link.rows) for link in profile.links),
        *((_what(one), one.rows) for one in profile.collectives),
    ]
    for name, rows in transfers:
        if wrong := sum(row.num_wrong for row in rows):
            found.append(f"{name}: {wrong} elements arrived wrong: do not train over it")
    return found


def _show_collective(console: Console, collective: CollectiveProfile) -> None:
    title = f"{_what(collective)}, {collective.num_ranks} ranks"
    _table(console, title, COLLECTIVE, collective.rows)
    fit = collective.fit
    _note(
        console,
        f"fit: {_us(fit.latency_s)} us + size / {_bandwidth(fit)}, worst error {format_percent(fit.worst_error)}, "
        f"{format_bytes(fit.low)} to {format_bytes(fit.high)}",
    )
    if collective.in_flight:
        smallest = collective.in_flight[0]
        _note(
            console,
            f"{collective.num_in_flight} of {format_bytes(smallest.num_bytes)} in flight: {_us(smallest.seconds)} us each",
        )


def _what(collective: CollectiveProfile) -> str:
    how = "" if collective.collective == "ring" else f" by {collective.collective}"
    return f"{collective.kind}{how} over {collective.transport}"


def _table(console: Console, title: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    if rows:
        console.print()
        console.print(Text(title, style="bold"))
        console.print(make_table(columns, rows, width=console.width))


def _note(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"), soft_wrap=True)


def _us(seconds: float) -> str:
    return format_number(seconds * 1e6)


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4f}"


def _bandwidth(fit: TransferFit) -> str:
    return "more than was measured" if fit.bytes_per_s is None else format_bandwidth(fit.bytes_per_s)


def _gb(fit: TransferFit) -> str:
    return MISSING if fit.bytes_per_s is None else format_number(fit.bytes_per_s / 1e9)


def _error(*fits: Fit) -> str:
    errors = [fit.worst_error for fit in fits if fit.worst_error is not None]
    return format_percent(max(errors)) if errors else fits[0].source.value


def _line(fit: WorkFit) -> str:
    return f"{_us(fit.fixed_s)} + {_us(fit.per_sample_s)}"


def _range(fit: Fit) -> str:
    return f"{fit.low:.0f}-{fit.high:.0f}"


def _unattributed(step: StepPoint) -> float:
    return step.unattributed_s / step.compute_s if step.compute_s > 0 else 0.0


def _worst_unattributed(rank: RankProfile) -> str:
    return format_percent(max(map(_unattributed, rank.steps), key=abs)) if rank.steps else MISSING


def _memory(rank: RankProfile) -> str:
    fit = rank.memory
    if fit is None:
        return MISSING
    return f"{format_number(fit.fixed_bytes / MIB)} + {format_number(fit.bytes_per_sample / MIB)}"


def _side(bytes_per_s: float | None, *, is_limit: bool) -> str:
    return MISSING if bytes_per_s is None else f"{'' if is_limit else '>= '}{format_bandwidth(bytes_per_s)}"


RANKS: list[Column[RankProfile]] = [
    Column("rank", lambda row: str(row.rank)),
    Column("device", lambda row: textwrap.fill(row.device, NAME_WIDTH), is_text=True),
    Column("host", lambda row: textwrap.fill(row.host, _WIDTH), is_text=True, spare=3),
    Column("samples", lambda row: _range(row.compute)),
    Column("fixed ms", lambda row: format_ms(row.compute.fixed_s)),
    Column("ms\n/sample", lambda row: format_ms(row.compute.per_sample_s)),
    Column("worst\nerror", lambda row: _error(row.compute)),
    Column("unattri-\nbuted", _worst_unattributed),
    Column("optimizer\nms", lambda row: format_ms(row.optimizer.fixed_s) if row.optimizer else MISSING, spare=2),
    Column("memory MiB\n+ per sample", _memory, spare=1),
]

OPS: list[Column[OpRow]] = [
    Column("rank", lambda row: str(row.rank)),
    Column("op", lambda row: textwrap.fill(row.op.name, NAME_WIDTH), is_text=True),
    Column("kind", lambda row: row.op.kind, is_text=True, spare=1),
    Column("of all\nops", lambda row: format_percent(row.share)),
    Column("forward us", lambda row: _line(row.op.forward)),
    Column("backward us", lambda row: _line(row.op.backward)),
    Column("worst\nerror", lambda row: _error(row.op.forward, row.op.backward)),
]

CODECS: list[Column[CodecLine]] = [
    Column("rank", lambda row: str(row.rank)),
    Column("codec", lambda row: row.codec.name, is_text=True),
    Column("encode\nfixed us", lambda row: _us(row.codec.encode.latency_s)),
    Column("encode\nGB/s", lambda row: _gb(row.codec.encode)),
    Column("decode\nfixed us", lambda row: _us(row.codec.decode.latency_s)),
    Column("decode\nGB/s", lambda row: _gb(row.codec.decode)),
    Column("worst\nerror", lambda row: _error(row.codec.encode, row.codec.decode)),
    Column("up to", lambda row: format_bytes(row.codec.encode.high), spare=1),
]

LINKS: list[Column[LinkProfile]] = [
    Column("from", lambda row: row.from_host, is_text=True),
    Column("to", lambda row: row.to_host, is_text=True),
    Column("over", lambda row: row.transport, is_text=True, spare=2),
    Column("latency us", lambda row: _us(row.fit.latency_s)),
    Column("bandwidth", lambda row: _bandwidth(row.fit)),
    Column("worst\nerror", lambda row: _error(row.fit)),
    Column("up to", lambda row: format_bytes(row.fit.high), spare=1),
    Column("#wrong", lambda row: str(sum(entry.num_wrong for entry in row.rows))),
]

HOSTS: list[Column[HostLink]] = [
    Column("host", lambda row: row.host, is_text=True),
    Column("uplink", lambda row: _side(row.up_bytes_per_s, is_limit=row.up_is_limit)),
    Column("downlink", lambda row: _side(row.down_bytes_per_s, is_limit=row.down_is_limit)),
    Column("latency us", lambda row: _us(row.latency_s)),
]

COLLECTIVE: list[Column[TransferRow]] = [
    Column("size (B)", lambda row: str(row.num_bytes)),
    Column("time (us)", lambda row: _us(row.seconds)),
    Column("algbw (GB/s)", lambda row: _gb_per_s(row.algbw_bytes_per_s)),
    Column("busbw (GB/s)", lambda row: _gb_per_s(row.busbw_bytes_per_s)),
    Column("#wrong", lambda row: str(row.num_wrong)),
]
