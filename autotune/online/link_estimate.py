"""What a controller knows of the links between hosts: as stated, as last looked at, and who should own shards by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.online.candidates import Candidates
from autotune.online.link_state import changed_hosts, in_words, links_of, ranks_on, with_links
from autotune.online.priors import Known, seconds_per_byte
from autotune.online.window import Window
from autotune.simulate.collectives import plan_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import CommPlan, Plan

_STEPS_PER_LOOK = 10
"""As many steps may send no more than a look does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """What a look has found."""

    what: str
    """In words."""
    ranks: tuple[int, ...]
    """Whose links changed."""


class LinkView:
    """The links of one job's hosts."""

    def __init__(self, stated: Cluster, *, reowns: bool = True, look_bytes: int = 0) -> None:
        """`reowns`: whether shards may get other owners. `look_bytes`: what a look puts on a link."""
        self._stated, self._reowns, self._look_bytes = stated, reowns, look_bytes
        self.cluster = stated
        """With links as last looked at."""
        self.is_current = True
        """Whether they are like that still, for all that is known."""
        self.owners: tuple[float, ...] = ()
        """Of shards, as links that were looked at call for."""

    def can_look(self, seen: Window) -> bool:
        """Whether there are links to look at, and a look is not far more than all that training itself asks of them."""
        is_worth_it = self._look_bytes <= _STEPS_PER_LOOK * seen.wire_bytes
        return is_worth_it and len(self.cluster.hosts) > 1 and seen.transport == "gloo"

    def take_in(self, arrivals: Sequence[Sequence[float]]) -> Sight:
        """What ranks have received from one another just now, a row for each. Links that are not clearly others stay as they were."""
        before, hosts = self.cluster, self.cluster.host_of_rank
        firsts = [arrivals[hosts.index(host)] for host in range(len(before.hosts))]
        now = with_links(self._stated, links_of(firsts))
        ratios = changed_hosts(before, now)
        kept = tuple(now.hosts[host] if host in ratios else old for host, old in enumerate(before.hosts))
        self.cluster, self.is_current = replace(before, hosts=kept), True
        if ratios and self._reowns:
            self.owners = plan_shares(self.cluster)
        return Sight(what=in_words(self.cluster, ratios), ranks=ranks_on(self.cluster, list(ratios)))

    def known(self, before: Known, running: CommPlan) -> Known:
        """What was known, on these links."""
        return before.on_links(self.cluster, self._stated, running)

    def owned(self, offered: Candidates, running: Plan) -> Candidates:
        """Candidates whose shards are owned as the links call for, if they were looked at; what runs stays as it is."""
        if not self.owners:
            return offered
        plans = [running if plan == running else self.with_owners(plan) for plan in (*offered.plans, running)]
        return replace(offered, plans=tuple(dict.fromkeys([*plans, self.with_owners(running)])))

    def with_owners(self, plan: Plan) -> Plan:
        """A plan, with owners that the links call for if it has any."""
        if plan.comm.collective != "shards":
            return plan
        return replace(plan, comm=replace(plan.comm, shares=self.owners))

    def owners_gain(self, seen: Window, known: Known) -> float:
        """Share of a step that other owners of the shards that run would save: at most what is beyond computing."""
        comm = seen.plan.comm
        if comm.collective != "shards" or self.owners in ((), comm.shares):
            return 0.0
        ring_s, best = seconds_per_byte("ring", self.cluster), known.shards_gain or 1.0
        saved_s = seen.wire_bytes * ring_s * (1 / known.collective_gain(comm) - 1 / best)
        return min(saved_s / seen.step_s, beyond(seen))


def beyond(seen: Window) -> float:
    """Share of a step that the slowest rank does not compute."""
    return max(1 - seen.compute_s / seen.step_s, 0.0)
