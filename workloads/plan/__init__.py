"""The plan: how one workload trains on one cluster. The one value that crosses all four packages."""

from autotune.workloads.plan.batch import BatchPlan
from autotune.workloads.plan.choices import COLLECTIVES, TRANSPORTS, Priority, ReducerKind, cpu_transports
from autotune.workloads.plan.codecs import CODECS, CodecKind, lossless_codecs, one_round_codecs
from autotune.workloads.plan.comm import DDP_BUCKET_BYTES, MIB, CommPlan
from autotune.workloads.plan.compression import CompressionPlan, KindCodec
from autotune.workloads.plan.placement import ROUND_ROBIN, SPLIT, PipelinePlan, Replica
from autotune.workloads.plan.plan import Plan, default_plan

__all__ = [
    "CODECS",
    "COLLECTIVES",
    "DDP_BUCKET_BYTES",
    "MIB",
    "ROUND_ROBIN",
    "SPLIT",
    "TRANSPORTS",
    "BatchPlan",
    "CodecKind",
    "CommPlan",
    "CompressionPlan",
    "KindCodec",
    "PipelinePlan",
    "Plan",
    "Priority",
    "ReducerKind",
    "Replica",
    "cpu_transports",
    "default_plan",
    "lossless_codecs",
    "one_round_codecs",
]
