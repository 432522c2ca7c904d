"""The plan: how one workload trains on one device mix. The one value that crosses all four packages.

Runtime and simulator read the same plan, the search writes it, the store keeps it. Parts are added as the project
learns to tune more; each part has a default that means what plain data-parallel training does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workloads.errors import SpecError
from workloads.serial import digest

MIB = 2**20
DDP_BUCKET_BYTES = 25 * MIB
"""DDP's default, with which its first bucket is 1 MiB; any other size given to DDP holds for all buckets."""
REDUCERS = ("ddp", "bucketed")
TRANSPORTS = ("gloo", "mpi", "nccl")
CODECS = ("none", "fp16", "bf16")
LOSSLESS_CODECS = ("none",)
DDP_CODECS = ("none", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """How the global batch is divided."""

    samples: tuple[int, ...]
    """Samples of each rank; they sum to the global batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommPlan:
    """How gradients travel."""

    reducer: str = "bucketed"
    """"ddp": torch's DistributedDataParallel, the baseline; "bucketed": our own reducer."""
    transport: str = "gloo"
    bucket_bytes: int = DDP_BUCKET_BYTES
    """Gradients are fused into buckets of about this size, sent as soon as complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionPlan:
    """What gradients look like on the wire."""

    codec: str = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A complete answer: with this and the workload, a job can start."""

    batch: BatchPlan
    comm: CommPlan = field(default_factory=CommPlan)
    compression: CompressionPlan = field(default_factory=CompressionPlan)

    def fingerprint(self) -> str:
        """Equal plans, equal fingerprints."""
        return digest(self)

    @property
    def is_lossless(self) -> bool:
        """Gradients arrive as they were computed."""
        return self.compression.codec in LOSSLESS_CODECS

    def validate(self, *, num_ranks: int, global_batch: int) -> None:
        """Refuse a plan that cannot run on this many ranks with this batch."""
        samples, comm = self.batch.samples, self.comm
        if len(samples) != num_ranks:
            raise SpecError(
                f"the plan gives samples to {len(samples)} ranks but the job has {num_ranks}: tune for this mix first"
            )
        if any(count < 0 for count in samples):
            raise SpecError(f"samples per rank {list(samples)} has a negative entry: samples are counted from 0")
        if (missing := global_batch - sum(samples)) != 0:
            change = f"add {missing} samples" if missing > 0 else f"take away {-missing} samples"
            raise SpecError(f"samples per rank sum to {sum(samples)} but the global batch is {global_batch}: {change}")
        for what, value, known in (
            ("reducer", comm.reducer, REDUCERS),
            ("transport", comm.transport, TRANSPORTS),
            ("codec", self.compression.codec, CODECS),
        ):
            if value not in known:
                raise SpecError(f"the plan's {what} is {value!r}: it must be one of {', '.join(known)}")
        if comm.bucket_bytes < 1:
            raise SpecError(f"the plan's bucket_bytes is {comm.bucket_bytes}: it must be at least 1")
        if comm.reducer == "ddp" and min(samples) < 1:
            raise SpecError(
                f"reducer 'ddp' needs a sample on every rank but samples are {list(samples)}: use reducer 'bucketed'"
            )
        if comm.reducer == "ddp" and self.compression.codec not in DDP_CODECS:
            raise SpecError(
                f"reducer 'ddp' takes codec {' or '.join(DDP_CODECS)} but the plan's is {self.compression.codec!r}: "
                "use reducer 'bucketed'"
            )


def default_plan(samples: tuple[int, ...], *, transport: str = "gloo") -> Plan:
    """What people run today: torch DDP with its defaults and the given split (an even one, for the baseline)."""
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(reducer="ddp", transport=transport))
