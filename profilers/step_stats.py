"""Statistics of one step of one rank in 78 bytes, for online retuning: small enough to be sent every step.

Of messages only sums are kept. They suffice to fit bandwidth and latency: a line t = a + b/B through (bytes, seconds) needs
n, Σb, Σt, Σb² and Σbt. The seconds of a part are its *service time*: from when it was posted, or from the completion of the
part before it if that was later. Parts in flight at the same time share a link: from posting to completion, each would
appear as slow as all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from autotune.workloads.errors import SpecError

_FORMAT = struct.Struct("<HIII8f4d")
"""Seconds in single precision; sums of squares in double: a fit takes differences of them."""
PACKED_BYTES = _FORMAT.size


class Part(NamedTuple):
    """One collective of one rank; times on any one clock."""

    num_bytes: float
    """On the wire."""
    ready_s: float
    """When the data was ready on the rank."""
    posted_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSums:
    """Sums over the parts that completed in a step."""

    num_parts: int = 0
    flight_s: float = 0.0
    """From posting to completion."""
    queue_s: float = 0.0
    """From ready to posted."""
    num_bytes: float = 0.0
    service_s: float = 0.0
    square_bytes: float = 0.0
    """Σb²."""
    byte_seconds: float = 0.0
    """Σbt, where t is the service time."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Self:
        """Sums of the parts of one rank, in any order."""
        ordered = sorted(parts, key=lambda part: (part.end_s, part.posted_s))
        flight_s = queue_s = num_bytes = service_s = square_bytes = byte_seconds = 0.0
        completed_s = float("-inf")
        for part in ordered:
            seconds = part.end_s - max(part.posted_s, completed_s)
            completed_s = part.end_s
            flight_s += part.end_s - part.posted_s
            queue_s += max(part.posted_s - part.ready_s, 0.0)
            num_bytes += part.num_bytes
            service_s += seconds
            square_bytes += part.num_bytes**2
            byte_seconds += part.num_bytes * seconds
        return cls(
            num_parts=len(ordered),
            flight_s=flight_s,
            queue_s=queue_s,
            num_bytes=num_bytes,
            service_s=service_s,
            square_bytes=square_bytes,
            byte_seconds=byte_seconds,
        )

    def __add__(self, other: PartSums) -> PartSums:
        """Of both together."""
        return PartSums(**{name: getattr(self, name) + getattr(other, name) for name in PartSums.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStats:
    """One training step of one rank."""

    rank: int
    step: int
    samples: int
    step_s: float
    compute_s: float
    """The step without waiting."""
    forward_s: float
    """Without waiting for parameters."""
    backward_s: float
    wait_s: float
    """For gradients after backward and, with cross-step overlap, for parameters in the forward pass."""
    stalled_s: float = 0.0
    """Of that, for parameters in the forward pass."""
    parts: PartSums = PartSums()

    def pack(self) -> bytes:
        """As `PACKED_BYTES` bytes."""
        parts = self.parts
        return _FORMAT.pack(
            self.rank,
            self.step,
            self.samples,
            parts.num_parts,
            self.step_s,
            self.compute_s,
            self.forward_s,
            self.backward_s,
            self.wait_s,
            self.stalled_s,
            parts.flight_s,
            parts.queue_s,
            parts.num_bytes,
            parts.service_s,
            parts.square_bytes,
            parts.byte_seconds,
        )

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The inverse of `pack`, to single precision."""
        if len(packed) != PACKED_BYTES:
            raise SpecError(
                f"a packed step has {len(packed)} bytes but must have {PACKED_BYTES}: run the same version on every rank"
            )
        rank, step, samples, num_parts, *seconds = _FORMAT.unpack(packed)
        step_s, compute_s, forward_s, backward_s, wait_s, stalled_s, flight_s, queue_s, *sums = seconds
        num_bytes, service_s, square_bytes, byte_seconds = sums
        return cls(
            rank=rank,
            step=step,
            samples=samples,
            step_s=step_s,
            compute_s=compute_s,
            forward_s=forward_s,
            backward_s=backward_s,
            wait_s=wait_s,
            stalled_s=stalled_s,
            parts=PartSums(
                num_parts=num_parts,
                flight_s=flight_s,
                queue_s=queue_s,
                num_bytes=num_bytes,
                service_s=service_s,
                square_bytes=square_bytes,
                byte_seconds=byte_seconds,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """The latest step of all ranks, by rank."""

    step: int
    samples: tuple[int, ...]
    compute_s: tuple[float, ...]
    """Forward and backward pass of each, without waiting."""
    closed: tuple[StepStats, ...] | None
    """Statistics of the previous step of each rank; None before the second step."""
    arrivals: tuple[tuple[float, ...], ...] | None = None
    """After a link probe before this step: bytes per second that each rank received, by round."""
