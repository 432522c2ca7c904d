"""The plan: how one workload trains on one cluster. The one value that crosses all four packages.

Runtime and simulator read the same plan, the search writes it, the store keeps it. Parts are added as the project
learns to tune more; each part has a default that means what plain data-parallel training does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.batch import BatchPlan, check_sum
from autotune.workloads.plan.choices import COLLECTIVES, TRANSPORTS, ReducerKind
from autotune.workloads.plan.codecs import CODECS, one_round_codecs
from autotune.workloads.plan.comm import CommPlan, check_known
from autotune.workloads.plan.compression import CompressionPlan
from autotune.workloads.plan.embedding import EmbeddingPlan
from autotune.workloads.plan.op_groups import PlacementPlan
from autotune.workloads.plan.placement import SPLIT, PipelinePlan
from autotune.workloads.serial import digest, to_data

_NOT_IN_FINGERPRINT_IF_DEFAULT = (
    ("batch", "sync_norm"),
    ("batch", "accumulate"),
    ("comm", "shares"),
    ("comm", "priority"),
    ("comm", "average_every"),
    ("compression", "top_share"),
    ("compression", "low_rank"),
    ("compression", "factors"),
    ("compression", "by_kind"),
)
"""They came later, and a plan that does not set them is the plan that it was before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A complete answer: with this and the workload, a job can start."""

    batch: BatchPlan
    comm: CommPlan = field(default_factory=CommPlan)
    compression: CompressionPlan = field(default_factory=CompressionPlan)
    pipeline: PipelinePlan | None = None
    """None: every rank holds the whole model, or `placement` says what it holds."""
    placement: PlacementPlan | None = None
    """Groups of ops on ranks of their own; not with `pipeline`, which is the case of a chain."""
    embedding: EmbeddingPlan | None = None
    """None: the embedding tables are parameters like all others."""

    def fingerprint(self) -> str:
        """Equal plans, equal fingerprints."""
        data, defaults = to_data(self), to_data(Plan(batch=BatchPlan(samples=self.batch.samples)))
        for part, name in _NOT_IN_FINGERPRINT_IF_DEFAULT:
            if data[part][name] == defaults[part][name]:
                del data[part][name]
        for name in ("placement", "embedding"):
            if data[name] is None:
                del data[name]
        if self.pipeline is not None:
            unset = {"order": (), "group_sizes": (), "sharing": SPLIT}
            for name in (name for name, default in unset.items() if getattr(self.pipeline, name) == default):
                del data["pipeline"][name]
        return digest(data)

    @property
    def global_batch(self) -> int:
        """Samples of a step: all ranks' together, or those of a first stage or group, through which all of them pass."""
        if self.placement is not None:
            return self.placement.global_batch
        if self.pipeline is None:
            return sum(self.batch.samples)
        return sum(self.batch.samples[ranks[0]] for ranks in self.pipeline.groups()[0])

    @property
    def is_placed(self) -> bool:
        """Ranks hold parts of the model: stages or groups of ops."""
        return self.pipeline is not None or self.placement is not None

    @property
    def used_ranks(self) -> tuple[int, ...]:
        """The ranks that take part. One without samples does not, unless it owns a share of what is summed: a rank that is left
        out holds no model and is in no collective.
        """
        if self.pipeline is not None:
            return tuple(sorted(rank for stage in self.pipeline.stage_ranks for rank in stage))
        if self.placement is not None:
            return tuple(sorted({rank for group in self.placement.groups for rank in group.ranks}))
        owners = {*self.comm.servers, *(rank for rank, share in enumerate(self.comm.shares) if share)}
        if self.embedding is not None:
            owners |= set(self.embedding.servers)
        return tuple(rank for rank, count in enumerate(self.batch.samples) if count or rank in owners)

    @property
    def leaves_out(self) -> bool:
        """Whether some rank takes no part."""
        return 0 in self.batch.samples and len(self.used_ranks) < len(self.batch.samples)

    def part(self, ranks: Sequence[int]) -> Plan:
        """The plan as a job of these ranks alone has it: the n-th of them is rank n."""
        place = {rank: number for number, rank in enumerate(ranks)}
        comm, pipeline = self.comm, self.pipeline
        if comm.servers or comm.shares:
            servers = tuple(place[rank] for rank in comm.servers)
            comm = replace(comm, servers=servers, shares=tuple(comm.shares[rank] for rank in ranks if comm.shares))
        if pipeline is not None:
            stages = tuple(tuple(place[rank] for rank in stage) for stage in pipeline.stage_ranks)
            pipeline = replace(pipeline, stage_ranks=stages)
        batch = replace(self.batch, samples=tuple(self.batch.samples[rank] for rank in ranks))
        placement = None if self.placement is None else self.placement.part(place)
        embedding = None if self.embedding is None else self.embedding.part(place)
        return replace(self, batch=batch, comm=comm, pipeline=pipeline, placement=placement, embedding=embedding)

    @property
    def is_lossless(self) -> bool:
        """Gradients arrive as they were computed."""
        codecs_are = all(CODECS[codec].is_lossless for codec in self.compression.codecs)
        return codecs_are and self.comm.reducer != ReducerKind.AVERAGED

    def validate(self, *, num_ranks: int, global_batch: int) -> None:
        """Refuse a plan that cannot run on this many ranks with this batch."""
        samples, comm = self.batch.samples, self.comm
        if len(samples) != num_ranks:
            raise SpecError(
                f"this plan is for {len(samples)} ranks, the job has {num_ranks}: start `mpirun -n {len(samples)} …`, "
                f"or sweep with --ranks {num_ranks}"
            )
        if any(count < 0 for count in samples):
            raise SpecError(f"samples per rank {list(samples)} has a negative entry: samples are counted from 0")
        if self.batch.accumulate < 1 or (self.pipeline is not None and self.batch.accumulate != 1):
            raise SpecError(
                f"the plan's accumulate is {self.batch.accumulate}: it must be at least 1, and 1 with pipeline stages, which have "
                "micro_batches"
            )
        if self.placement is not None:
            self._check_placement(self.placement, global_batch)
        elif self.pipeline is None:
            check_sum(samples, global_batch, "samples per rank")
        else:
            self.pipeline.check(samples, global_batch)
        comm.check(num_ranks)
        if self.embedding is not None:
            self.embedding.check(samples)
        for codec in self.compression.codecs:
            check_known("codec", codec, tuple(CODECS))
        self.compression.check()
        if comm.reducer == ReducerKind.DDP and any(samples[rank] < 1 for rank in self.used_ranks):
            raise SpecError(
                f"reducer 'ddp' needs a sample on every rank that takes part but samples are {list(samples)}: use reducer 'bucketed'"
            )
        if comm.reducer == ReducerKind.AVERAGED and self.batch.sync_norm:
            raise SpecError(
                "reducer 'averaged' trains a model of its own on each rank, whose BatchNorm statistics sync_norm would mix: "
                "set sync_norm to false, or use another reducer"
            )
        _check_codec(comm, self.compression)

    def _check_placement(self, placement: PlacementPlan, global_batch: int) -> None:
        if self.pipeline is not None:
            raise SpecError(
                "the plan has a pipeline and a placement: a pipeline is a placement of a chain, so give one of them"
            )
        placement.check(self.batch.samples, global_batch)

    def check_predictable(self) -> None:
        """Refuse what jobs run but no prediction knows."""
        if self.embedding is not None:
            raise SpecError(
                "the plan has embedding servers, which jobs run but the simulator does not predict: measure it by `autotune train`"
            )

    def check_runnable(self) -> None:
        """Refuse what can be predicted but not run yet."""
        comm = self.comm
        collective = COLLECTIVES[comm.collective]
        if not collective.is_runnable:
            raise SpecError(
                f"the plan's collective is {comm.collective!r}, which `autotune simulate` predicts but no job runs: "
                f"use {', '.join(COLLECTIVES.names(lambda one: one.is_runnable))}"
            )
        if self.batch.accumulate != 1:
            raise SpecError(
                f"the plan's accumulate is {self.batch.accumulate}, which `autotune simulate` predicts but no job runs: use 1, or "
                "state accumulate in the workload"
            )
        if collective.needs_messages and not TRANSPORTS[comm.transport].carries_shards:
            raise SpecError(
                f"the plan's collective {comm.collective!r} is made of messages from rank to rank, which transport "
                f"{comm.transport!r} does not carry here: use transport gloo, or collective ring"
            )
        if self.is_placed:
            _check_placed_runs(self)
        if self.embedding is not None:
            _check_embedding_runs(self)


def _check_codec(comm: CommPlan, compression: CompressionPlan) -> None:
    """Not every reducer and transport carries every codec."""
    codec = CODECS[compression.codec]
    if comm.reducer == ReducerKind.DDP and not codec.has_ddp_hook:
        raise SpecError(
            f"reducer 'ddp' takes codec {' or '.join(CODECS.names(lambda one: one.has_ddp_hook))} but the plan's is "
            f"{codec.name!r}: use reducer 'bucketed'"
        )
    if comm.reducer == ReducerKind.AVERAGED and codec.name != "none":
        raise SpecError(
            f"reducer 'averaged' sends no gradients but the plan's codec is {codec.name!r}: use codec 'none'"
        )
    if comm.reducer == ReducerKind.BUCKETED and not codec.is_one_round:
        raise SpecError(
            f"reducer 'bucketed' takes codec {', '.join(one_round_codecs())} but the plan's is {codec.name!r}: "
            "use reducer 'scheduled'"
        )
    if not comm.is_scheduled and compression.factors:
        raise SpecError(
            f"reducer {comm.reducer!r} sends no factors but the plan's are {list(compression.factors)}: "
            "use reducer 'scheduled'"
        )
    if not comm.is_scheduled and compression.by_kind:
        raise SpecError(
            f"reducer {comm.reducer!r} has one codec for all layers but the plan's by_kind names "
            f"{', '.join(entry.kind for entry in compression.by_kind)}: use reducer 'scheduled'"
        )
    needs_messages = [name for name in compression.codecs if CODECS[name].needs_messages]
    if not TRANSPORTS[comm.transport].carries_messages and (compression.factors or needs_messages):
        what = f"codec {needs_messages[0]!r}" if needs_messages else "factors"
        raise SpecError(
            f"transport {comm.transport!r} has no messages from rank to rank, which {what} need{'s' if needs_messages else ''}: "
            "use transport 'gloo'"
        )


def _check_placed_runs(plan: Plan) -> None:
    """Stages talk by messages over gloo, exactly; what is tuned for gradients that are summed over all ranks has no place there."""
    if plan.pipeline is not None:
        _check_pipeline_runs(plan.pipeline)
    for name, value, runs in (
        ("transport", plan.comm.transport, "gloo"),
        ("reducer", plan.comm.reducer, "bucketed"),
        ("collective", plan.comm.collective, "ring"),
        ("codec", plan.compression.codec, "none"),
        ("sync_norm", plan.batch.sync_norm, False),
    ):
        if value != runs:
            raise SpecError(
                f"the plan has pipeline stages or groups of ops and {name} {value!r}: these run with {name} {runs!r} only"
            )


def _check_embedding_runs(plan: Plan) -> None:
    """Tables are exact step by step, over messages that gloo alone carries."""
    if plan.is_placed:
        raise SpecError(
            "the plan has embedding servers and pipeline stages or groups of ops, which no job runs together: give one of them"
        )
    if plan.comm.transport != "gloo":
        raise SpecError(
            f"the plan has embedding servers and transport {plan.comm.transport!r}: rows are exchanged over gloo only"
        )
    if plan.comm.reducer == ReducerKind.AVERAGED:
        raise SpecError(
            "the plan has embedding servers and reducer 'averaged', which trains a model of its own on each rank: use another "
            "reducer"
        )


def _check_pipeline_runs(pipeline: PipelinePlan) -> None:
    degree = max(len(ranks) for stage in pipeline.groups() for ranks in stage)
    if degree != 1:
        raise SpecError(
            f"the plan's tensor_parallel is {degree}, which `autotune simulate` predicts but no job runs: "
            "use 1, with more stages or more replicas of a stage"
        )
    if pipeline.sharing != SPLIT and any(len(ranks) > 1 for ranks in pipeline.stage_ranks):
        raise SpecError(
            f"the plan's sharing is {pipeline.sharing!r}, which `autotune simulate` predicts but no job runs: use {SPLIT!r}"
        )


def default_plan(samples: tuple[int, ...], *, transport: str = "gloo") -> Plan:
    """What people run today: torch DDP with its defaults and the given split (an even one, for the baseline)."""
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(reducer=ReducerKind.DDP, transport=transport))
