"""Lines fitted through measurements, as they are kept: each with its source and the range in which it was measured.

A prediction checks `covers` first: beyond the range a line is extrapolated.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.profilers.fit import Line, Point, fit_line
from autotune.profilers.links import algbw, busbw


class Source(enum.Enum):
    """Where a number comes from."""

    MEASURED = "measured"
    """By `autotune profile`, on the device or link itself; of an emulated cluster, on the emulation (see the label)."""
    IMPORTED = "imported"
    """Measured elsewhere, by another tool."""
    DATASHEET = "datasheet"
    """Not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A line, its origin and its range."""

    source: Source
    low: float
    """Least x that was measured: samples or bytes."""
    high: float
    worst_error: float | None = None
    """Largest |fitted − measured| / measured over the points; None where there are no points."""

    @staticmethod
    def origin(points: Sequence[Point], line: Line) -> dict[str, Any]:
        """The source and the range of a line through measured points."""
        measured = [x for x, _ in points]
        return {"source": Source.MEASURED, "low": min(measured), "high": max(measured), "worst_error": line.worst_error}

    def covers(self, x: float) -> bool:
        """Whether x lies in the range that was measured: outside, the line is an extrapolation."""
        return self.low <= x <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFit(Fit):
    """Seconds of some work over b samples: fixed_s + per_sample_s · b."""

    fixed_s: float
    per_sample_s: float
    points: tuple[tuple[float, float], ...] = ()
    """(samples, seconds): medians over the repeats."""

    @classmethod
    def measured(cls, points: Sequence[Point]) -> Self:
        line = fit_line(points)
        return cls(
            fixed_s=line.fixed,
            per_sample_s=line.slope,
            points=tuple(points),
            **cls.origin(points, line),
        )

    def seconds(self, num_samples: float) -> float:
        return self.fixed_s + self.per_sample_s * num_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFit(Fit):
    """Peak bytes of a step over b samples: fixed_bytes + bytes_per_sample · b, without communication buffers."""

    fixed_bytes: float
    bytes_per_sample: float
    points: tuple[tuple[float, float], ...] = ()
    """(samples, bytes)."""

    @classmethod
    def measured(cls, points: Sequence[Point]) -> Self:
        line = fit_line(points)
        return cls(
            fixed_bytes=line.fixed,
            bytes_per_sample=line.slope,
            points=tuple(points),
            **cls.origin(points, line),
        )

    def peak_bytes(self, num_samples: float) -> float:
        return self.fixed_bytes + self.bytes_per_sample * num_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferFit(Fit):
    """Seconds of a transfer of n bytes, or of other work on them: latency_s + n / bytes_per_s."""

    latency_s: float
    bytes_per_s: float | None
    """None: no message was large enough to take longer than a small one."""

    @classmethod
    def measured(cls, rows: Sequence[TransferRow]) -> Self:
        return cls.through([(row.num_bytes, row.seconds) for row in rows])

    @classmethod
    def through(cls, points: Sequence[Point]) -> Self:
        """From measured (bytes, seconds)."""
        line = fit_line(points)
        return cls(
            latency_s=line.fixed,
            bytes_per_s=1 / line.slope if line.slope > 0 else None,
            **cls.origin(points, line),
        )

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + (num_bytes / self.bytes_per_s if self.bytes_per_s is not None else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferRow:
    """One size of a transfer, with the columns of nccl-tests."""

    num_bytes: int
    """Of the whole array: for all-gather, what a rank holds in the end."""
    seconds: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    num_wrong: int
    """Elements that were not what they had to be, over all ranks."""

    @classmethod
    def measured(cls, kind: str, num_ranks: int, num_bytes: int, seconds: float, num_wrong: int) -> Self:
        return cls(
            num_bytes=num_bytes,
            seconds=seconds,
            algbw_bytes_per_s=algbw(num_bytes, seconds),
            busbw_bytes_per_s=busbw(kind, num_ranks, num_bytes, seconds),
            num_wrong=num_wrong,
        )
