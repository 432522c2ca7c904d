"""The part of a plan that says what gradients look like on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class KindCodec:
    """A codec for one kind of layers."""

    kind: str
    """The class of the module that owns a parameter, such as "Linear" or "Conv2d"."""
    codec: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionPlan:
    """What gradients look like on the wire."""

    codec: str = "none"
    top_share: float = 0.01
    """Of "topk": the share of a unit's values that are sent."""
    low_rank: int = 4
    """Of "powersgd": columns of the factors that a matrix is sent as."""
    factors: tuple[str, ...] = ()
    """Of reducer "scheduled": Linear layers, by name, whose gradients travel as the factors that they are products of,
    whatever the codec of the others: exact, and fewer bytes where a batch has few rows."""
    by_kind: tuple[KindCodec, ...] = ()
    """Of reducer "scheduled": kinds of layers with a codec of their own instead of `codec`."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """All that some layer may go by."""
        return (self.codec, *(entry.codec for entry in self.by_kind))

    def for_kind(self, kind: str) -> CompressionPlan:
        """What holds for layers of this kind: one codec."""
        codec = next((entry.codec for entry in self.by_kind if entry.kind == kind), self.codec)
        return replace(self, codec=codec, by_kind=(), factors=())

    def check_kinds(self, known: Iterable[str]) -> None:
        """Refuse kinds of layers that the model does not have."""
        there = sorted(set(known))
        for entry in self.by_kind:
            if entry.kind not in there:
                raise SpecError(
                    f"the plan has codec {entry.codec!r} for layers of kind {entry.kind!r}, but the model's trained layers are "
                    f"of kind {', '.join(there)}: name one of these in by_kind"
                )

    def check(self) -> None:
        """Refuse values that no codec takes."""
        if not 0 < self.top_share <= 1:
            raise SpecError(
                f"the plan's top_share is {self.top_share}: it must be above 0 and at most 1, "
                "such as 0.01 for one value in a hundred"
            )
        if self.low_rank < 1:
            raise SpecError(f"the plan's low_rank is {self.low_rank}: it must be at least 1, such as 4")
        kinds = [entry.kind for entry in self.by_kind]
        if len(set(kinds)) < len(kinds):
            raise SpecError(f"the plan's by_kind names layers of kinds {kinds}: each kind may have one codec")
