"""The network part of a profile: pairs of hosts, the host links that follow from them, and collectives.

Emulated links pace all-reduces and messages, so only those are measured there; what is left out is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autotune.jobs.context import JobContext
from autotune.profilers.links import ALL_GATHER, ALL_REDUCE, BROADCAST, Side, downlink, uplink
from autotune.results.store.fits import Source, TransferFit, TransferRow
from autotune.results.store.profile import CollectiveProfile, HostLink, LinkProfile
from autotune.runtime.control.mpi import Control
from autotune.runtime.probe.link_probe import ProbeBudget, message_rows, pairs_to_measure, sweep
from autotune.runtime.probe.timed_collectives import (
    NUM_IN_FLIGHT,
    AllGather,
    AllReduce,
    AllReducesInFlight,
    Broadcast,
    Exchange,
    GroupMember,
)
from autotune.space.space import configurations
from autotune.workloads.plan import COLLECTIVES, MIB, TRANSPORTS

T = TypeVar("T")

FULL_BUDGET = ProbeBudget()
QUICK_BUDGET = ProbeBudget(
    smallest_bytes=MIB // 16, growth=4, largest_bytes=4 * MIB, longest_s=0.5, loops=5, slow_loops=1
)
_MOST_BYTES = 32 * MIB
_SOFTWARE_BYTES = MIB // 2
"""Above this size the links take nearly all of the time, and software as much as at this size."""
_NOT_PACED = "emulated links do not pace it: its time on this machine does not describe the cluster"
_ALONE = "the job has one rank"
KINDS: dict[str, Callable[[GroupMember], Exchange]] = {
    ALL_REDUCE: AllReduce,
    BROADCAST: Broadcast,
    ALL_GATHER: AllGather,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What measuring needs on this rank."""

    context: JobContext
    control: Control
    hosts: tuple[str, ...]
    """Name of each rank's host."""
    timeout_s: float

    @property
    def is_paced(self) -> bool:
        return self.context.cluster.paces_links

    def pairs(self) -> list[tuple[int, int]]:
        """Ranks between which messages are timed; of an emulated cluster only where it states a link."""
        order = list(dict.fromkeys(self.hosts))
        pairs = pairs_to_measure([order.index(host) for host in self.hosts], within_hosts=not self.is_paced)
        linked = {host.name for host in self.context.cluster.hosts if host.link is not None}
        return [pair for pair in pairs if not self.is_paced or linked & {self.hosts[rank] for rank in pair}]

    @property
    def link_transport(self) -> str | None:
        """The first that sends from rank to rank."""
        return next((name for name in self.context.transports if TRANSPORTS[name].carries_messages), None)

    def collectives(self, transport: str) -> tuple[str, ...]:
        """How a search may have its all-reduces carried out: the transport's own comes first."""
        several = configurations(self.control.size, (transport,), cluster=self.context.cluster)["collectives"]
        return ("ring", *(name for name in several if COLLECTIVES[name].needs_messages))

    def on_group(self, transport: str, measure: Callable[[GroupMember], T], *, collective: str = "ring") -> T:
        """`measure` on a group of its own, which nothing holds afterwards."""
        device = self.context.rank_context.torch_device
        with self.context.groups.open(transport, collective=collective, timeout_s=self.timeout_s) as group:
            found = measure(GroupMember(group=group, device=device))
            del group
        return found


def measure_links(network: Network) -> tuple[LinkProfile, ...]:
    """Messages between hosts, one pair at a time; between two ranks of a host as well where links are real."""
    pairs, transport, hosts = network.pairs(), network.link_transport, network.hosts
    if transport is None or not pairs:
        return ()
    measured = network.on_group(
        transport,
        lambda rank_context: [message_rows(network.control, rank_context, a, b, FULL_BUDGET) for a, b in pairs],
    )
    return tuple(
        LinkProfile(
            from_host=hosts[a], to_host=hosts[b], transport=transport, fit=TransferFit.measured(rows), rows=tuple(rows)
        )
        for (a, b), rows in zip(pairs, measured, strict=True)
    )


def measure_all_reduces(context: JobContext, control: Control, *, timeout_s: float) -> tuple[CollectiveProfile, ...]:
    """All-reduces of a few sizes over each transport, in seconds rather than minutes: the cost of a message beyond its
    bytes decides how small buckets may be, and no datasheet states it. Nothing where links are emulated, or where the
    devices' speeds are not stated, since nothing can be predicted then.
    """
    if context.cluster.paces_links or any(device.flops_per_s is None for device in context.cluster.devices):
        return ()
    network = Network(context=context, control=control, hosts=(), timeout_s=timeout_s)
    return measure_collectives(network, [ALL_REDUCE], QUICK_BUDGET)


def measure_collectives(
    network: Network, kinds: Sequence[str] = (), budget: ProbeBudget | None = None
) -> tuple[CollectiveProfile, ...]:
    """Each collective over each transport of the job, and all-reduces in each way in which a plan may carry them out."""
    if network.control.size == 1:
        return ()
    kinds = kinds or ([ALL_REDUCE] if network.is_paced else list(KINDS))
    budget = budget or collective_budget(network.context.graph.param_bytes)
    found: list[CollectiveProfile] = []
    for transport in network.context.transports:
        found += _measure(network, transport, "ring", kinds, budget)
        for collective in network.collectives(transport)[1:]:
            found += _measure(network, transport, collective, [ALL_REDUCE], _software_budget(budget))
    return tuple(found)


def _measure(
    network: Network, transport: str, collective: str, kinds: Sequence[str], budget: ProbeBudget
) -> Iterator[CollectiveProfile]:
    """All in one group. All-reduces are also timed several at once."""

    def rows(member: GroupMember) -> list[tuple[list[TransferRow], list[TransferRow]]]:
        return [
            (
                sweep(network.control, KINDS[kind](member), budget, kind=kind),
                sweep(network.control, AllReducesInFlight(member), _software_budget(budget), kind=kind)
                if kind == ALL_REDUCE
                else [],
            )
            for kind in kinds
        ]

    measured = network.on_group(transport, rows, collective=collective)
    for kind, (alone, in_flight) in zip(kinds, measured, strict=True):
        yield CollectiveProfile(
            kind=kind,
            transport=transport,
            num_ranks=network.control.size,
            fit=TransferFit.measured(alone),
            rows=tuple(alone),
            collective=collective,
            in_flight=tuple(in_flight),
            num_in_flight=NUM_IN_FLIGHT if in_flight else 0,
        )


def _software_budget(budget: ProbeBudget) -> ProbeBudget:
    """For what all-reduces cost beyond their bytes."""
    return replace(budget, largest_bytes=min(budget.largest_bytes, _SOFTWARE_BYTES))


def collective_budget(param_bytes: int) -> ProbeBudget:
    """Sizes up to that of the whole model, which no bucket exceeds, so that a prediction need not extrapolate."""
    largest = FULL_BUDGET.largest_bytes
    while largest < min(param_bytes, _MOST_BYTES):
        largest *= FULL_BUDGET.growth
    return replace(FULL_BUDGET, largest_bytes=largest)


def host_links(links: Sequence[LinkProfile]) -> tuple[HostLink, ...]:
    """Each host's own link, as far as the pairs between hosts determine it."""
    between = [link for link in links if link.from_host != link.to_host]
    speeds = {
        (link.from_host, link.to_host): link.fit.bytes_per_s for link in between if link.fit.bytes_per_s is not None
    }
    return tuple(
        _host_link(host, uplink(host, speeds), downlink(host, speeds), between)
        for host in dict.fromkeys(link.from_host for link in between)
    )


def _host_link(host: str, up: Side | None, down: Side | None, between: Sequence[LinkProfile]) -> HostLink:
    return HostLink(
        host=host,
        source=Source.MEASURED,
        up_bytes_per_s=up.bytes_per_s if up else None,
        down_bytes_per_s=down.bytes_per_s if down else None,
        up_is_limit=up is not None and up.is_limit,
        down_is_limit=down is not None and down.is_limit,
        latency_s=min(link.fit.latency_s for link in between if host in (link.from_host, link.to_host)),
    )


def unavailable(network: Network) -> dict[str, str]:
    """What was not measured, and why."""
    reasons = {}
    if network.control.size == 1:
        reasons = dict.fromkeys((*KINDS, "links"), _ALONE)
    elif network.link_transport is None:
        reasons["links"] = "messages from rank to rank are timed over gloo or NCCL: name one in --transports"
    elif not network.pairs():
        reasons["links"] = "the cluster states no link between these ranks, so messages between them are free"
    if network.is_paced and network.control.size > 1:
        reasons |= dict.fromkeys((BROADCAST, ALL_GATHER), _NOT_PACED)
    return reasons
