"""Figures as people read them: ms, samples/s, "2.31x", "41 s". Plain ASCII, for any terminal and log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autotune.workloads.plan import SPLIT, CommPlan, CompressionPlan, PipelinePlan, Plan, ReducerKind
from autotune.workloads.plan.op_groups import PlacementPlan
from autotune.workloads.quantity import format_bytes

MANY_PARTITIONS = 1000
"""From here on a credit is as good as none."""
MANY_RANKS = 8
_MOST_GROUPS = 8
NEAR_ONE = (0.9, 1.1)
MISSING = "-"


def format_number(value: float) -> str:
    """Three figures, never an exponent: 0.342, 3.42, 34.2, 342, 3420."""
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    for limit, decimals in ((0.9995, 3), (9.995, 2), (99.95, 1)):
        if magnitude < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def format_ms(seconds: float | None) -> str:
    """0.2134 -> "213"; the unit stands in the column's heading."""
    return MISSING if seconds is None else format_number(seconds * 1e3)


def format_seconds(seconds: float) -> str:
    """A time of any size with its unit: "1.20 s", "213 ms", "14.6 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 0.9995:
            return f"{format_number(seconds * scale)} {unit}"
    return f"{format_number(seconds * 1e9)} ns"


def format_rate(samples_per_s: float | None) -> str:
    """300.4 -> "300"."""
    return MISSING if samples_per_s is None else format_number(samples_per_s)


def format_times(ratio: float | None) -> str:
    """2.3123 -> "2.31x"; near 1, where it matters, one figure more: "0.993x"."""
    return MISSING if ratio is None else f"{_ratio(ratio)}x"


def format_interval(low: float, high: float) -> str:
    """The interval of a ratio: "2.28-2.35"."""
    if any(NEAR_ONE[0] <= end < NEAR_ONE[1] for end in (low, high)):
        return f"{low:.3f}-{high:.3f}"
    return f"{_ratio(low)}-{_ratio(high)}"


def format_percent(fraction: float | None) -> str:
    """0.863 -> "86 %"."""
    return MISSING if fraction is None else f"{fraction * 100:.0f} %"


def format_duration(seconds: float) -> str:
    """A rough time to wait: "41 s", "3 min", "1 h 10 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(names: Iterable[str]) -> str:
    """Names with their number: "2 full, half"."""
    counts = Counter(names)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())


def plan_summary(plan: Plan) -> str:
    """A plan in one line: "samples 27/18/13/6  bucket 1 MiB  gloo  none"; what is not our plain reducer is named first."""
    comm, compression = plan.comm, plan.compression
    if plan.pipeline is not None:
        return f"{stages_summary(plan.pipeline)}  {comm.transport}"
    if plan.placement is not None:
        return f"{groups_summary(plan.placement)}  {comm.transport}"
    parts = [comm_summary(comm), f"samples {format_shares(plan.batch.samples)}", pieces(comm), comm.transport]
    parts += [
        codecs_text(compression),
        f"{len(compression.factors)} layers by sufficient factors" if compression.factors else "",
    ]
    parts += [f"in {plan.batch.accumulate} passes"] if plan.batch.accumulate > 1 else []
    parts += ["synchronised norms"] if plan.batch.sync_norm else []
    return "  ".join(part for part in parts if part)


def codecs_text(compression: CompressionPlan) -> str:
    """The codec, after those of single kinds of layers: "Linear fp16, else none"."""
    kinds = [f"{entry.kind} {entry.codec}" for entry in compression.by_kind]
    return ", ".join([*kinds, f"else {compression.codec}"]) if kinds else compression.codec


def stages_summary(pipeline: PipelinePlan) -> str:
    """A pipeline as text: "3 stages on ranks 0 > 1+2 > (3 4) from ops 0/4/9, 8 micro-batches, 1f1b".

    Replicas of a stage are joined by +; ranks in brackets share every op.
    """
    ranks = " > ".join("+".join(map(_group, stage)) for stage in pipeline.groups())
    first = "/".join(map(str, pipeline.first_ops))
    dealt = " round-robin" if pipeline.sharing != SPLIT else ""
    stages = f"{len(pipeline.first_ops)} stages" if len(pipeline.first_ops) > 1 else "1 stage"
    return f"{stages} on ranks {ranks} from ops {first}, {pipeline.micro_batches} micro-batches{dealt}, {pipeline.schedule}"


def groups_summary(placement: PlacementPlan) -> str:
    """Groups of ops as text: "2 groups on ranks 0+1+2+3 (16/8/4/4), 0 (32), 1 micro-batch"."""
    groups = ", ".join(
        f"{'+'.join(map(str, group.ranks))} ({format_shares(group.samples)})"
        for group in placement.groups[:_MOST_GROUPS]
    )
    more = f" and {len(placement.groups) - _MOST_GROUPS} more" if len(placement.groups) > _MOST_GROUPS else ""
    parts = "1 micro-batch" if placement.micro_batches == 1 else f"{placement.micro_batches} micro-batches"
    number = "1 group" if len(placement.groups) == 1 else f"{len(placement.groups)} groups"
    return f"{number} on ranks {groups}{more}, {parts}"


def _group(ranks: tuple[int, ...]) -> str:
    """A rank, or ranks that share every op: "(0 1)"."""
    return str(ranks[0]) if len(ranks) == 1 else f"({' '.join(map(str, ranks))})"


def comm_summary(comm: CommPlan) -> str:
    """The reducer, with its collective if that is not a ring; empty for our plain one."""
    scheduled = "cross-step" if comm.crosses_steps else "scheduled"
    averaged = f"mean of models every {comm.average_every} steps"
    name = {"ddp": "DDP", "scheduled": scheduled, "averaged": averaged}.get(comm.reducer, "")
    collective = comm.collective if comm.collective != "ring" else ""
    owned = f"owned {format_shares(tuple(round(100 * share) for share in comm.shares))} %" if comm.shares else ""
    return " ".join(part for part in (name, collective, owned) if part)


def pieces(comm: CommPlan) -> str:
    """What is sent at once: "bucket 1 MiB", or "partition 256 KiB, credit 1 MiB"."""
    if comm.reducer == ReducerKind.AVERAGED:
        return ""
    if not comm.is_scheduled:
        return f"bucket {format_bytes(comm.bucket_bytes)}"
    in_flight = max(comm.credit_bytes // comm.partition_bytes, 1)
    credit = f", credit {format_bytes(comm.credit_bytes)}" if in_flight < MANY_PARTITIONS else ""
    return f"partition {format_bytes(comm.partition_bytes)}{credit}"


def format_shares(samples: tuple[int, ...]) -> str:
    """Samples of each rank: "27/18/13/6"; of many ranks, the range."""
    if len(samples) <= MANY_RANKS:
        return "/".join(map(str, samples))
    return f"{min(samples)} to {max(samples)} on {len(samples)} ranks"


def _ratio(value: float) -> str:
    if value >= NEAR_ONE[1]:
        return format_number(value)
    return f"{value:.3f}" if value >= NEAR_ONE[0] else f"{value:.2f}"
