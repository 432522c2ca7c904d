"""Which part of which gradient goes next: the decision, apart from everything that carries it out.

After ByteScheduler (Peng et al., SOSP 2019): gradients are cut into parts, the part nearest the model's input goes first,
and parts are sent while fewer than `credit_bytes` are under way (the last may go over). What differs: collectives hang
unless every rank posts them in one order, so one place decides for all, and grants a part only once its gradient is there
on **every** rank; whoever is late holds up only its own parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.buckets import num_partitions


@dataclass(frozen=True, slots=True)
class Offer:
    """A rank has a round of a unit ready for the wire."""

    unit: int
    round: int
    num_bytes: int
    num_elements: int
    cuttable: bool
    """Whether parts of it may travel on their own."""
    unused: Sequence[int] = ()
    """Parameters of the unit, by place, that have no gradient on this rank."""
    position: int = 0
    """Of this rank in the script: all must be at the same."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Every rank may post this part now, after all parts granted before."""

    unit: int
    round: int
    part: int
    num_parts: int
    num_bytes: int
    """What it takes of the credit."""
    sizes: Sequence[int]
    """Elements that each rank offers."""
    unused: Sequence[int]
    """Parameters of the unit that have a gradient on no rank."""


class Grants:
    """Takes offers of all ranks, gives grants. `priorities`: per unit, the smallest first; None: first come, first served."""

    def __init__(
        self,
        *,
        num_ranks: int,
        partition_bytes: int | None,
        credit_bytes: int | None,
        priorities: Sequence[int] | None = None,
    ) -> None:
        """`partition_bytes` None: nothing is cut. `credit_bytes` None: no limit."""
        self.partition_bytes, self.credit_bytes = partition_bytes, credit_bytes
        self._num_ranks = num_ranks
        self._priorities = priorities
        self._offers: dict[tuple[int, int], dict[int, Offer]] = {}
        self._waiting: list[tuple[int, int, Grant]] = []
        self._num_parts = 0
        self.under_way_bytes = 0

    def offer(self, rank: int, offer: Offer) -> None:
        """What is there on the last rank may be granted."""
        key = (offer.unit, offer.round)
        offers = self._offers.setdefault(key, {})
        offers[rank] = offer
        if len(offers) == self._num_ranks:
            del self._offers[key]
            self._cut([offers[index] for index in range(self._num_ranks)])

    def landed(self, num_bytes: int) -> None:
        """A part has arrived: its credit is free again."""
        self.under_way_bytes -= num_bytes

    def take(self) -> list[Grant]:
        """What may be posted now, in this order."""
        granted = []
        while self._waiting and (self.credit_bytes is None or self.under_way_bytes < self.credit_bytes):
            grant = heapq.heappop(self._waiting)[-1]
            self.under_way_bytes += grant.num_bytes
            granted.append(grant)
        return granted

    def _cut(self, offers: list[Offer]) -> None:
        first = offers[0]
        if len({offer.position for offer in offers}) > 1:
            positions = [offer.position for offer in offers]
            odd = min(range(len(positions)), key=lambda rank: (positions.count(positions[rank]), -rank))
            raise SpecError(out_of_step(odd))
        # Sums are as large on every rank; of what is gathered, everybody's part travels, and whole.
        num_parts = 1
        if first.cuttable and self.partition_bytes is not None:
            num_parts = num_partitions(self.partition_bytes, first.num_bytes, first.num_elements)
        for grant in parts_of(offers, num_parts):
            urgency = self._priorities[grant.unit] if self._priorities is not None else 0
            heapq.heappush(self._waiting, (urgency, self._num_parts, grant))
            self._num_parts += 1


def out_of_step(rank: int) -> str:
    """A rank's gradients belong to another step than the others'."""
    return (
        f"rank {rank} sends the gradients of another step than the other ranks: it has skipped a batch or a step, or has "
        "loaded a checkpoint alone; every rank must run backward() and step() for every batch, so let all ranks decide "
        "alike, by job.mean(...) or by gradients, which are those of all ranks"
    )


class InTurn:
    """Where nothing is to be decided nobody is asked: units go in the order of their numbers, each as soon as this rank has it.

    Every rank offers each unit once before it offers any of them again, so all post in the same order. `num_parts`: into
    which each is cut.
    """

    def __init__(self, num_parts: Sequence[int]) -> None:
        self._num_parts = num_parts
        self._offers: dict[int, Offer] = {}
        self._next = 0

    def offer(self, offer: Offer) -> list[Grant]:
        """What may be posted now, in this order."""
        self._offers[offer.unit] = offer
        granted: list[Grant] = []
        while (turn := self._offers.pop(self._next, None)) is not None:
            granted += parts_of([turn], self._num_parts[self._next])
            self._next = (self._next + 1) % len(self._num_parts)
        return granted


def parts_of(offers: Sequence[Offer], num_parts: int) -> list[Grant]:
    """What all ranks offer of one round, cut."""
    first = offers[0]
    num_bytes = first.num_bytes if first.cuttable else sum(offer.num_bytes for offer in offers)
    unused = set(first.unused).intersection(*(offer.unused for offer in offers))
    return [
        Grant(
            unit=first.unit,
            round=first.round,
            part=part,
            num_parts=num_parts,
            num_bytes=num_bytes * (part + 1) // num_parts - num_bytes * part // num_parts,
            sizes=tuple(offer.num_elements for offer in offers),
            unused=tuple(sorted(unused)),
        )
        for part in range(num_parts)
    ]
