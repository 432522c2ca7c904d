"""Which device each rank of a job takes, from what all ranks see; plain data in, plain data out, no torch.

Ranks and accelerators are matched so that as many ranks as possible have one of their own; among equals, a rank takes the
accelerator at its place on the host (its local rank). What is left over computes on the CPU, and is named in a sentence:
no rank falls back silently. Accelerators are identified by UUID, over the whole job: two containers of one machine may have
different host names and see the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

CPU = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleDevices:
    """The accelerators that one process sees, in the order of their indices."""

    type: str = CPU
    """As torch names it: "cuda" (also for ROCm), "xpu"; "cpu" without any."""
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    """One for each; empty strings where the driver states none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """One rank of the job: where it runs and what it sees."""

    host: str
    local_rank: int | None = None
    """None where the launcher does not state it."""
    visible: VisibleDevices


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceChoice:
    """What a rank computes on."""

    type: str = CPU
    index: int | None = None
    """Among the devices that the rank sees; None for the CPU."""
    name: str = ""
    uuid: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceChoices:
    """Of a whole job."""

    ranks: tuple[DeviceChoice, ...]
    notes: tuple[str, ...]
    """What a user should know, one sentence each."""

    @property
    def is_mixed(self) -> bool:
        return len({choice.type for choice in self.ranks}) > 1

    @property
    def summary(self) -> str:
        """How many ranks compute on what, such as "3 on cuda, 1 on the CPU"; without host names, for records."""
        kinds = sorted({choice.type for choice in self.ranks}, key=lambda kind: (kind == CPU, kind))
        return ", ".join(f"{sum(c.type == kind for c in self.ranks)} on {_named(kind)}" for kind in kinds)


_Key = tuple[str, ...]


def choose_devices(places: Sequence[RankPlace]) -> DeviceChoices:
    """The device of each rank, in the order of ranks; the same on every rank that is given the same places."""
    seen = [_keys(place, rank, places) for rank, place in enumerate(places)]
    chosen = _match(places, seen)
    choices = tuple(_choice(place, index) for place, index in zip(places, chosen, strict=True))
    notes = [] if not any(seen) else [_reason(rank, places, seen, chosen) for rank in _left_over(chosen)]
    notes += _unidentified(places)
    found = DeviceChoices(ranks=choices, notes=tuple(notes))
    mixed = [f"this is a mixed job of {len(choices)} ranks: {found.summary}"] if found.is_mixed else []
    return replace(found, notes=(*notes, *mixed))


def _keys(place: RankPlace, rank: int, places: Sequence[RankPlace]) -> list[_Key]:
    """What identifies each device that a rank sees: its UUID; without one host and index, or the rank that alone sees it."""
    visible = place.visible
    alone = _one_each(place, places)
    keys: list[_Key] = []
    for index in range(len(visible.names)):
        uuid = visible.uuids[index] if index < len(visible.uuids) else ""
        place_of = (str(rank),) if alone else (place.host, str(index))
        keys.append((visible.type, uuid) if uuid else (visible.type, *place_of))
    return keys


def _one_each(place: RankPlace, places: Sequence[RankPlace]) -> bool:
    """Whether each of several ranks of this host sees one device, without a UUID: the launcher has dealt them out."""
    others = [other.visible for other in places if other.host == place.host and other.visible.names]
    return len(others) > 1 and all(len(other.names) == 1 and not any(other.uuids) for other in others)


def _match(places: Sequence[RankPlace], seen: Sequence[list[_Key]]) -> list[int | None]:
    """The index of each rank's device: a largest matching, by augmenting paths (Kuhn's algorithm)."""
    owner: dict[_Key, int] = {}

    def takes(rank: int, tried: set[_Key]) -> bool:
        for key in _preferred(rank):
            if key in tried:
                continue
            tried.add(key)
            if key not in owner or takes(owner[key], tried):
                owner[key] = rank
                return True
        return False

    positions = _positions(places)

    def _preferred(rank: int) -> list[_Key]:
        keys = seen[rank]
        at = positions[rank] % len(keys) if keys else 0
        free_first = [*keys[at:], *keys[:at]]
        return sorted(free_first, key=lambda key: key in owner)

    for rank in sorted(range(len(places)), key=lambda rank: (positions[rank], rank)):
        takes(rank, set())
    index_of = {rank: seen[rank].index(key) for key, rank in owner.items()}
    return [index_of.get(rank) for rank in range(len(places))]


def _positions(places: Sequence[RankPlace]) -> list[int]:
    """Each rank's place on its host, by local rank where the launcher states it."""
    by_host: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_host.setdefault(place.host, []).append(rank)
    positions = [0] * len(places)
    for ranks in by_host.values():
        local = [places[rank].local_rank for rank in ranks]
        is_stated = None not in local and len(set(local)) == len(local)
        ordered = sorted(ranks, key=lambda rank: places[rank].local_rank or 0) if is_stated else ranks
        for position, rank in enumerate(ordered):
            positions[rank] = position
    return positions


def _choice(place: RankPlace, index: int | None) -> DeviceChoice:
    if index is None:
        return DeviceChoice()
    visible = place.visible
    uuid = visible.uuids[index] if index < len(visible.uuids) else ""
    return DeviceChoice(type=visible.type, index=index, name=visible.names[index], uuid=uuid)


def _left_over(chosen: Sequence[int | None]) -> list[int]:
    return [rank for rank, index in enumerate(chosen) if index is None]


def _reason(rank: int, places: Sequence[RankPlace], seen: Sequence[list[_Key]], chosen: Sequence[int | None]) -> str:
    """Why this rank computes on the CPU in a job in which some rank sees an accelerator."""
    host = places[rank].host
    here = [other for other, place in enumerate(places) if place.host == host]
    on_host = {key for other in here for key in seen[other]}
    takes = f"rank {rank} on host {host} takes the CPU"
    if not on_host:
        return f"{takes}: the host has no accelerator that torch can use"
    if not seen[rank]:
        return (
            f"{takes}: it sees none of the {_count(len(on_host))} that other ranks of the host see: compare the ranks' "
            "CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK)"
        )
    if 1 < len(on_host) < len(here) and set(seen[rank]) == on_host:
        return f"{takes}: the host has {_count(len(on_host))} for {len(here)} ranks"
    owners = {seen[r][index]: r for r, index in enumerate(chosen) if index is not None}
    taken = [
        f"{_identity(places[rank], i)} is taken by rank {owners[key]}"
        for i, key in enumerate(seen[rank])
        if key in owners
    ]
    return (
        f"{takes}: {' and '.join(taken)}; the host has {_count(len(on_host))} for {len(here)} ranks. One device cannot serve "
        "two ranks: give each rank its own, or start fewer ranks"
    )


def _identity(place: RankPlace, index: int) -> str:
    choice = _choice(place, index)
    return f"{choice.type}:{index} ({', '.join(part for part in (choice.name, choice.uuid) if part)})"


def _unidentified(places: Sequence[RankPlace]) -> list[str]:
    hosts = dict.fromkeys(place.host for place in places if place.visible.names and _one_each(place, places))
    return [
        f"each rank on host {host} sees one accelerator, without a UUID: that no two ranks share one cannot be checked"
        for host in hosts
    ]


def _count(number: int) -> str:
    return f"{number} accelerator{'s' * (number != 1)}"


def _named(kind: str) -> str:
    return "the CPU" if kind == CPU else kind
