"""After a search, its plan once more with the embedding tables on servers: no prediction knows these plans, so one is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autotune.results.judge.selection import fastest
from autotune.results.store.record import Role, TrialRecord
from autotune.search.tuner import ByTrials, Tuner
from autotune.space.space import Proposal
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan
from autotune.workloads.plan.embedding import EmbeddingPlan


class TablesOnServers(ByTrials):
    """Proposes the plan of `search` with its tables on servers, which are the workers, and stands for the faster of both."""

    name = "tables on servers"
    is_lossless = True

    def __init__(self, search: Tuner) -> None:
        self._search = search

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        found = self._search.choice(without_servers(records))
        served = None if found is None else on_servers(found.plan)
        if served is None or any(record.plan == served for record in records):
            return None
        return Proposal(plan=served, role=Role.SERVERS)

    def tell(self, record: TrialRecord) -> None:
        """It has one proposal."""

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        found = self._search.choice(without_servers(records))
        served = [record for record in records if record.role is Role.SERVERS]
        return fastest([*served, *(record for record in records if found is not None and record.plan == found.plan)])


def without_servers(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that predictions know."""
    return [record for record in records if record.plan.embedding is None]


def on_servers(plan: Plan) -> Plan | None:
    """The plan with its tables on all its workers; None where that does not run."""
    served = dataclasses.replace(plan, embedding=EmbeddingPlan())
    try:
        served.check_runnable()
    except SpecError:
        return None
    return served
