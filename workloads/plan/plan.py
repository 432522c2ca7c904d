"""The plan: how one workload trains on one device mix. The one value that crosses all four packages.

Runtime and simulator read the same plan, the search writes it, the store keeps it. Parts are added as the project
learns to tune more; each part has a default that means what plain data-parallel training does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isclose

from autotune.workloads.errors import SpecError
from autotune.workloads.serial import digest, to_data
from autotune.workloads.stage_order import SCHEDULES, SEARCHED, Pass, check_order, stage_passes

MIB = 2**20
DDP_BUCKET_BYTES = 25 * MIB
"""DDP's default, with which its first bucket is 1 MiB; any other size given to DDP holds for all buckets."""
REDUCERS = ("ddp", "bucketed", "scheduled", "averaged")
COLLECTIVES = ("ring", "tree", "shards", "server")
RUNNABLE_COLLECTIVES = ("ring", "shards", "server")
PRIORITIES = ("layer", "fifo")
TRANSPORTS = ("gloo", "mpi", "nccl")
CODECS = ("none", "fp16", "bf16", "int8", "topk", "powersgd")
LOSSLESS_CODECS = ("none",)
DDP_CODECS = ("none", "fp16")
MESSAGE_CODECS = ("int8", "topk")
"""Gathered or swapped from rank to rank, not summed."""
ONE_ROUND_CODECS = ("none", "fp16", "bf16")
"""A tensor that is summed as it is: what reducer "bucketed" can send."""
_NOT_IN_FINGERPRINT_IF_DEFAULT = (
    ("batch", "sync_norm"),
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
class BatchPlan:
    """How the global batch is divided."""

    samples: tuple[int, ...]
    """Samples of each rank; they sum to the global batch."""
    sync_norm: bool = False
    """BatchNorm layers take their statistics over the samples of all ranks, so that results do not depend on the split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommPlan:
    """How gradients travel."""

    reducer: str = "bucketed"
    """"ddp": torch's DistributedDataParallel, the baseline; "bucketed": our own reducer, buckets in the order they are
    complete; "scheduled": units of gradients, cut into partitions, by priority under a credit; "averaged": no gradient travels,
    models are averaged every few steps."""
    transport: str = "gloo"
    bucket_bytes: int = DDP_BUCKET_BYTES
    """Gradients are fused into buckets of about this size, sent as soon as complete."""
    collective: str = "ring"
    """How a sum over ranks is carried out: "ring", "tree" (predicted only), "shards" owned in proportion to bandwidth, or
    by parameter servers ("server")."""
    servers: tuple[int, ...] = ()
    """With "server": the ranks whose hosts hold the parameters, an equal share each."""
    shares: tuple[float, ...] = ()
    """With "shards": what each rank owns; empty: in proportion to the bandwidths that the cluster file states."""
    partition_bytes: int = 4 * MIB
    """Of "scheduled": gradients are fused and cut into parts of about this size."""
    credit_bytes: int = 16 * MIB
    """Of "scheduled": parts are sent while fewer bytes than this are under way."""
    priority: str = "layer"
    """Of "scheduled": "layer": the part nearest the model's input goes first; "fifo": in the order they are complete."""
    crosses_steps: bool = False
    """Of "scheduled": a layer's next forward pass waits for its own parameters only, not for the whole step's."""
    average_every: int = 8
    """Of "averaged": steps from one mean of all models to the next."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelinePlan:
    """The model cut into stages that different ranks compute, on parts of the batch that follow one another."""

    first_ops: tuple[int, ...]
    """Index of the first op of each stage; the first is 0."""
    stage_ranks: tuple[tuple[int, ...], ...]
    """The ranks of each stage: replicas that share the batch, or groups of `tensor_parallel` that share each op."""
    micro_batches: int
    schedule: str = "1f1b"
    """"gpipe", "1f1b", "zero-bubble", or "searched": the one in `order`."""
    tensor_parallel: int = 1
    order: tuple[str, ...] = ()
    """Of "searched": the passes of each stage, such as "F0 F1 B0 B1" (`autotune.workloads.stage_order`)."""

    def passes(self) -> tuple[tuple[Pass, ...], ...]:
        """Per stage: what its ranks do, in order."""
        return stage_passes(self.schedule, len(self.first_ops), self.micro_batches, self.order)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A complete answer: with this and the workload, a job can start."""

    batch: BatchPlan
    comm: CommPlan = field(default_factory=CommPlan)
    compression: CompressionPlan = field(default_factory=CompressionPlan)
    pipeline: PipelinePlan | None = None
    """None: every rank holds the whole model."""

    def fingerprint(self) -> str:
        """Equal plans, equal fingerprints."""
        data, defaults = to_data(self), to_data(Plan(batch=BatchPlan(samples=self.batch.samples)))
        for part, name in _NOT_IN_FINGERPRINT_IF_DEFAULT:
            if data[part][name] == defaults[part][name]:
                del data[part][name]
        if self.pipeline is not None and not self.pipeline.order:
            del data["pipeline"]["order"]
        return digest(data)

    @property
    def global_batch(self) -> int:
        """Samples of a step: all ranks' together, or those of a pipeline's first stage, through which all of them pass."""
        if self.pipeline is None:
            return sum(self.batch.samples)
        return sum(self.batch.samples[rank] for rank in self.pipeline.stage_ranks[0][:: self.pipeline.tensor_parallel])

    @property
    def is_lossless(self) -> bool:
        """Gradients arrive as they were computed."""
        return set(self.compression.codecs) <= set(LOSSLESS_CODECS) and self.comm.reducer != "averaged"

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
        if self.pipeline is None:
            _check_sum(samples, global_batch, "samples per rank")
        else:
            _check_pipeline(self.pipeline, samples, global_batch)
        _check_known("reducer", comm.reducer, REDUCERS)
        _check_known("collective", comm.collective, COLLECTIVES)
        _check_known("transport", comm.transport, TRANSPORTS)
        _check_known("priority", comm.priority, PRIORITIES)
        for codec in self.compression.codecs:
            _check_known("codec", codec, CODECS)
        _check_compression(self.compression)
        _check_comm(comm, num_ranks)
        if comm.reducer == "ddp" and min(samples) < 1:
            raise SpecError(
                f"reducer 'ddp' needs a sample on every rank but samples are {list(samples)}: use reducer 'bucketed'"
            )
        if comm.reducer == "averaged" and self.batch.sync_norm:
            raise SpecError(
                "reducer 'averaged' trains a model of its own on each rank, whose BatchNorm statistics sync_norm would mix: "
                "set sync_norm to false, or use another reducer"
            )
        _check_codec(comm, self.compression)

    def check_runnable(self) -> None:
        """Refuse what can be predicted but not run yet."""
        comm = self.comm
        if comm.collective not in RUNNABLE_COLLECTIVES:
            raise SpecError(
                f"the plan's collective is {comm.collective!r}, which `autotune simulate` predicts but no job runs: "
                f"use {', '.join(RUNNABLE_COLLECTIVES)}"
            )
        if comm.collective != "ring" and comm.transport != "gloo":
            raise SpecError(
                f"the plan's collective {comm.collective!r} is made of messages from rank to rank, which transport "
                f"{comm.transport!r} does not carry here: use transport gloo, or collective ring"
            )
        if self.pipeline is not None:
            _check_pipeline_runs(self, self.pipeline)


def _check_known(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SpecError(f"the plan's {what} is {value!r}: it must be one of {', '.join(known)}")


def _check_compression(compression: CompressionPlan) -> None:
    if not 0 < compression.top_share <= 1:
        raise SpecError(
            f"the plan's top_share is {compression.top_share}: it must be above 0 and at most 1, "
            "such as 0.01 for one value in a hundred"
        )
    if compression.low_rank < 1:
        raise SpecError(f"the plan's low_rank is {compression.low_rank}: it must be at least 1, such as 4")
    kinds = [entry.kind for entry in compression.by_kind]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"the plan's by_kind names layers of kinds {kinds}: each kind may have one codec")


def _check_comm(comm: CommPlan, num_ranks: int) -> None:
    for name in ("bucket_bytes", "partition_bytes", "credit_bytes", "average_every"):
        if getattr(comm, name) < 1:
            raise SpecError(f"the plan's {name} is {getattr(comm, name)}: it must be at least 1")
    if (comm.collective == "server") != bool(comm.servers):
        raise SpecError(
            f"the plan's collective is {comm.collective!r} with servers {list(comm.servers)}: name server ranks with "
            "'server' and only with it"
        )
    if comm.shares and comm.collective != "shards":
        raise SpecError(
            f"the plan's collective is {comm.collective!r} with shares {list(comm.shares)}: only 'shards' have owners"
        )
    if comm.shares and (len(comm.shares) != num_ranks or min(comm.shares) < 0 or not isclose(sum(comm.shares), 1.0)):
        raise SpecError(
            f"the plan's shares are {list(comm.shares)}: {num_ranks} ranks need one each, none negative, summing to 1"
        )
    if any(not 0 <= rank < num_ranks for rank in comm.servers):
        raise SpecError(f"the plan's servers {list(comm.servers)} must be ranks from 0 to {num_ranks - 1}")


def _check_codec(comm: CommPlan, compression: CompressionPlan) -> None:
    """Not every reducer and transport carries every codec."""
    codec = compression.codec
    if comm.reducer == "ddp" and codec not in DDP_CODECS:
        raise SpecError(
            f"reducer 'ddp' takes codec {' or '.join(DDP_CODECS)} but the plan's is {codec!r}: use reducer 'bucketed'"
        )
    if comm.reducer == "averaged" and codec != "none":
        raise SpecError(f"reducer 'averaged' sends no gradients but the plan's codec is {codec!r}: use codec 'none'")
    if comm.reducer == "bucketed" and codec not in ONE_ROUND_CODECS:
        raise SpecError(
            f"reducer 'bucketed' takes codec {', '.join(ONE_ROUND_CODECS)} but the plan's is {codec!r}: "
            "use reducer 'scheduled'"
        )
    if comm.reducer != "scheduled" and compression.factors:
        raise SpecError(
            f"reducer {comm.reducer!r} sends no factors but the plan's are {list(compression.factors)}: "
            "use reducer 'scheduled'"
        )
    if comm.reducer != "scheduled" and compression.by_kind:
        raise SpecError(
            f"reducer {comm.reducer!r} has one codec for all layers but the plan's by_kind names "
            f"{', '.join(entry.kind for entry in compression.by_kind)}: use reducer 'scheduled'"
        )
    needs_messages = [name for name in compression.codecs if name in MESSAGE_CODECS]
    if comm.transport == "mpi" and (compression.factors or needs_messages):
        what = f"codec {needs_messages[0]!r}" if needs_messages else "factors"
        raise SpecError(
            f"transport 'mpi' has no messages from rank to rank, which {what} need{'s' if needs_messages else ''}: "
            "use transport 'gloo'"
        )


def _check_sum(samples: tuple[int, ...], global_batch: int, what: str) -> None:
    if (missing := global_batch - sum(samples)) != 0:
        change = f"add {missing} samples" if missing > 0 else f"take away {-missing} samples"
        raise SpecError(f"{what} sum to {sum(samples)} but the global batch is {global_batch}: {change}")


def _check_pipeline(pipeline: PipelinePlan, samples: tuple[int, ...], global_batch: int) -> None:
    ranks = [rank for stage in pipeline.stage_ranks for rank in stage]
    idle = [rank for rank in range(len(samples)) if rank not in ranks]
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(len(samples))) or any(samples[r] for r in idle):
        raise SpecError(
            f"the plan's stages hold ranks {ranks} with samples {list(samples)}: each of the {len(samples)} ranks must be in one "
            "stage, or in none and without samples"
        )
    first = pipeline.first_ops
    if len(first) != len(pipeline.stage_ranks) or first[0] != 0 or any(b <= a for a, b in pairwise(first)):
        raise SpecError(
            f"the plan's first_ops are {list(first)} for {len(pipeline.stage_ranks)} stages: one per stage, rising from 0"
        )
    if pipeline.schedule not in SCHEDULES:
        raise SpecError(f"the plan's schedule is {pipeline.schedule!r}: it must be one of {', '.join(SCHEDULES)}")
    if (pipeline.schedule == SEARCHED) != bool(pipeline.order):
        raise SpecError(
            f"the plan's schedule is {pipeline.schedule!r} with an order for {len(pipeline.order)} stages: give an order with "
            f"{SEARCHED!r} and only with it"
        )
    degree = pipeline.tensor_parallel
    if pipeline.micro_batches < 1 or degree < 1 or any(len(stage) % degree for stage in pipeline.stage_ranks):
        raise SpecError(
            f"the plan has {pipeline.micro_batches} micro-batches and tensor_parallel {degree}: both must be at least 1, "
            "and every stage's ranks a multiple of the second"
        )
    if pipeline.order:
        check_order(pipeline.order, len(first), pipeline.micro_batches)
    for number, stage in enumerate(pipeline.stage_ranks):
        counts = tuple(samples[rank] for rank in stage[::degree])
        _check_sum(counts, global_batch, f"samples of stage {number}")
        if any(count % pipeline.micro_batches for count in counts):
            raise SpecError(
                f"stage {number} has samples {list(counts)} in {pipeline.micro_batches} micro-batches: each rank's must be "
                "a multiple of it"
            )


def _check_pipeline_runs(plan: Plan, pipeline: PipelinePlan) -> None:
    """Stages talk by messages over gloo, exactly; what is tuned for gradients that are summed over all ranks has no place there."""
    if pipeline.tensor_parallel != 1:
        raise SpecError(
            f"the plan's tensor_parallel is {pipeline.tensor_parallel}, which `autotune simulate` predicts but no job runs: "
            "use 1, with more stages or more replicas of a stage"
        )
    for name, value, runs in (
        ("transport", plan.comm.transport, "gloo"),
        ("reducer", plan.comm.reducer, "bucketed"),
        ("collective", plan.comm.collective, "ring"),
        ("codec", plan.compression.codec, "none"),
        ("sync_norm", plan.batch.sync_norm, False),
    ):
        if value != runs:
            raise SpecError(
                f"the plan has pipeline stages and {name} {value!r}: a pipeline runs with {name} {runs!r} only"
            )


def default_plan(samples: tuple[int, ...], *, transport: str = "gloo") -> Plan:
    """What people run today: torch DDP with its defaults and the given split (an even one, for the baseline)."""
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(reducer="ddp", transport=transport))
