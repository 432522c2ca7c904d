"""An estimate of the links between hosts: as stated, updated by link probes, and the owner shares that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.online.candidates import Candidates
from autotune.online.link_state import changed_hosts, in_words, links_of, ranks_on, with_links
from autotune.online.priors import Priors, seconds_per_byte
from autotune.online.window import Window
from autotune.simulate.collectives import plan_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import CommPlan, Plan

_STEPS_PER_PROBE = 10
"""A link probe may send at most the bytes of this many steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a link probe, or another reason to evaluate candidates."""

    what: str
    """One clause for the log."""
    ranks: tuple[int, ...]
    """Ranks on hosts whose links changed."""


class LinkEstimate:
    """The links of one job's hosts."""

    def __init__(self, stated: Cluster, *, may_reown: bool = True, probe_bytes: int = 0) -> None:
        """`may_reown`: whether owner shares may change. `probe_bytes`: bytes that a link probe puts on a link."""
        self._stated, self._may_reown, self._probe_bytes = stated, may_reown, probe_bytes
        self.cluster = stated
        """The cluster with the links of the last link probe."""
        self.is_current = True
        """False from a change of the network until the next link probe."""
        self.owners: tuple[float, ...] = ()
        """Owner shares for the links of the last link probe; empty before one found a change."""

    def can_probe(self, seen: Window) -> bool:
        """Whether there are links to probe, and a probe is cheap relative to what training sends."""
        is_cheap = self._probe_bytes <= _STEPS_PER_PROBE * seen.wire_bytes
        return is_cheap and len(self.cluster.hosts) > 1 and seen.transport == "gloo"

    def update(self, arrivals: Sequence[Sequence[float]]) -> Finding:
        """Apply a link probe: the receive speeds of every rank, one per round. Only links that clearly changed are updated."""
        before, hosts = self.cluster, self.cluster.host_of_rank
        firsts = [arrivals[hosts.index(host)] for host in range(len(before.hosts))]
        now = with_links(self._stated, links_of(firsts))
        ratios = changed_hosts(before, now)
        updated = tuple(now.hosts[host] if host in ratios else old for host, old in enumerate(before.hosts))
        self.cluster, self.is_current = replace(before, hosts=updated), True
        if ratios and self._may_reown:
            self.owners = plan_shares(self.cluster)
        return Finding(what=in_words(self.cluster, ratios), ranks=ranks_on(self.cluster, list(ratios)))

    def updated_priors(self, before: Priors, running: CommPlan) -> Priors:
        """The priors on these links."""
        return before.on_links(self.cluster, self._stated, running)

    def owned(self, candidates: Candidates, running: Plan) -> Candidates:
        """The candidates with the owner shares for these links; the running plan also stays as it is."""
        if not self.owners:
            return candidates
        plans = [running if plan == running else self.with_owners(plan) for plan in (*candidates.plans, running)]
        return replace(candidates, plans=tuple(dict.fromkeys([*plans, self.with_owners(running)])))

    def with_owners(self, plan: Plan) -> Plan:
        """A plan with the owner shares for these links, if its collective has owners."""
        if plan.comm.collective != "shards":
            return plan
        return replace(plan, comm=replace(plan.comm, shares=self.owners))

    def owners_gain(self, seen: Window, priors: Priors) -> float:
        """Share of a step that other owner shares would save for the plan that runs: at most the time beyond computing."""
        comm = seen.plan.comm
        if comm.collective != "shards" or self.owners in ((), comm.shares):
            return 0.0
        ring_s, best = seconds_per_byte("ring", self.cluster), priors.shards_gain or 1.0
        saved_s = seen.wire_bytes * ring_s * (1 / priors.collective_gain(comm) - 1 / best)
        return min(saved_s / seen.step_s, beyond(seen))


def beyond(seen: Window) -> float:
    """Share of a step beyond the compute time of the slowest rank."""
    return max(1 - seen.compute_s / seen.step_s, 0.0)
