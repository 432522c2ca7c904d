"""A race: its contenders, what each tried while tuning, how their plans compared, and the table that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autotune.results.judge.stats import Ratio, speedup
from autotune.results.store.record import AGAIN, DDP_TUNED, SCHEMA, Limit, RankResult, WorkloadInfo, current_name
from autotune.results.store.store import read_json
from autotune.results.text.numbers import format_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import Plan
from autotune.workloads.quantity import format_bytes

DDP_TUNED_FP16 = f"{DDP_TUNED}, fp16 hook"
OURS = "autotune"
OURS_LOSSY = "autotune, lossy allowed"
NEAR_BEST = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One trial of a contender's tuning."""

    num_steps: int
    """Training steps it had used when this trial was done."""
    step_s: float | None
    """None where the plan could not run."""
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """One contender with the plan it chose, and that plan's mean step in each interleaved round."""

    name: str
    is_lossless: bool
    """It may only send gradients as they were computed."""
    plan: Plan
    rounds_s: tuple[float, ...]
    ranks: tuple[RankResult, ...]
    tried: tuple[Tried, ...] = ()

    @property
    def step_s(self) -> float:
        return median(self.rounds_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Race:
    """One workload on one cluster."""

    workload: WorkloadInfo
    cluster: Cluster
    limit: Limit | None
    seed: int
    steps_per_trial: int
    steps_per_round: int
    entrants: tuple[Entrant, ...]
    environment: dict[str, str]
    command: str
    created_at: str
    schema: int = SCHEMA

    def find(self, name: str) -> Entrant | None:
        return next((entrant for entrant in self.entrants if entrant.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A contender's line of the table."""

    name: str
    plan: Plan
    samples_per_s: float
    vs_peer: Ratio | None
    """Against balanced, bucket-tuned DDP, lossless."""
    vs_kind: Ratio | None
    """Against tuned DDP of the same kind: lossless against lossless, lossy against its fp16 hook."""
    fraction_of_limit: float | None
    cpu_s_per_step: float
    tuning_steps: int
    steps_to_near_best: int | None
    """Tuning steps until a plan within 5 % of the best that any contender of its kind found; None: never."""
    is_ours: bool


def read_race(path: Path) -> Race:
    """A race that `autotune race` has written, with the names that this version gives to contenders."""
    race = read_json(Race, path)
    return replace(race, entrants=tuple(replace(one, name=current_name(one.name)) for one in race.entrants))


def places(race: Race) -> list[Place]:
    """The table of a race."""
    return [_place(race, entrant) for entrant in race.entrants]


def _place(race: Race, entrant: Entrant) -> Place:
    peer = race.find(DDP_TUNED)
    same_kind = peer if entrant.is_lossless else race.find(DDP_TUNED_FP16)
    return Place(
        name=entrant.name,
        plan=entrant.plan,
        samples_per_s=race.workload.global_batch / entrant.step_s,
        vs_peer=_against(peer, entrant),
        vs_kind=_against(same_kind, entrant),
        fraction_of_limit=race.limit.share(entrant.plan, entrant.step_s) if race.limit else None,
        cpu_s_per_step=sum(rank.cpu_s for rank in entrant.ranks),
        tuning_steps=entrant.tried[-1].num_steps if entrant.tried else 0,
        steps_to_near_best=_steps_to_near_best(race, entrant),
        is_ours=entrant.name in (OURS, OURS_LOSSY),
    )


def _against(base: Entrant | None, entrant: Entrant) -> Ratio | None:
    return None if base is None or base is entrant else speedup(base.rounds_s, entrant.rounds_s)


def _steps_to_near_best(race: Race, entrant: Entrant) -> int | None:
    """A lossless contender is held against the best lossless plan, one that may lose precision against the best of all."""
    rivals = [e for e in race.entrants if not e.name.endswith(AGAIN) and (e.is_lossless or not entrant.is_lossless)]
    times = [tried.step_s for rival in rivals for tried in rival.tried if tried.step_s is not None]
    enough_s = min(times, default=0.0) / NEAR_BEST
    return next((t.num_steps for t in entrant.tried if t.step_s is not None and t.step_s <= enough_s), None)


def why_no_faster(race: Race) -> list[str]:
    """For each of our plans that is no faster than tuned DDP of its kind beyond noise: what was measured."""
    return [
        _why(race, entrant, peer, ratio)
        for name, peer_name in ((OURS, DDP_TUNED), (OURS_LOSSY, DDP_TUNED_FP16))
        if (entrant := race.find(name)) and (peer := race.find(peer_name))
        if (ratio := speedup(peer.rounds_s, entrant.rounds_s)).verdict != "faster"
    ]


def _why(race: Race, entrant: Entrant, peer: Entrant, ratio: Ratio) -> str:
    """Compute and wait of both, and how long a ring keeps the tightest link busy: no split or bucket shortens that."""
    spent = [
        f"{one.name} ({_plan_text(one.plan)}) computes {_ms(max(rank.compute_s for rank in one.ranks))} ms on its "
        f"slowest rank, and no rank waits less than {_ms(min(rank.wait_s for rank in one.ranks))} ms"
        for one in (entrant, peer)
    ]
    ring_s = ring_time_s(race, entrant.plan)
    ring = f" A ring of these gradients alone takes {_ms(ring_s)} ms on the tightest link." if ring_s else ""
    return f"{ratio.value:.3f}x ({ratio.low:.3f}-{ratio.high:.3f}), {ratio.verdict}: {'; '.join(spent)}.{ring}"


def ring_time_s(race: Race, plan: Plan) -> float:
    """The time of a ring all-reduce of the gradients on the slowest link of the cluster; 0 where no link is stated."""
    links = [host.link for host in race.cluster.hosts if host.link is not None]
    size = len(plan.batch.samples)
    num_bytes = race.workload.param_bytes / (1 if plan.is_lossless else 2)
    slowest = min((min(link.up_bytes_per_s, link.down_bytes_per_s) for link in links), default=0.0)
    return 2 * (size - 1) / size * num_bytes / slowest if slowest and len(race.cluster.hosts) > 1 else 0.0


def _plan_text(plan: Plan) -> str:
    return f"{format_shares(plan.batch.samples)}, {format_bytes(plan.comm.bucket_bytes)} buckets, {plan.comm.transport}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"
