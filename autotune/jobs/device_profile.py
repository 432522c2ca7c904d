"""The device part of a profile: this rank's ops, whole steps and memory as lines over the batch size, codecs over bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from autotune.jobs.context import JobContext, agreed
from autotune.jobs.job import Job
from autotune.results.store.fits import MemoryFit, TransferFit, WorkFit
from autotune.results.store.profile import CodecProfile, CodecRow, OpProfile, RankProfile, StepPoint
from autotune.runtime.control.mpi import Control
from autotune.runtime.probe.codec_probe import CodecSample, codec_sizes, measure_codecs
from autotune.runtime.probe.op_probe import OpProbe, SizeSamples, sizes_to_measure
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CODECS
from autotune.workloads.serial import from_data, to_data

T = TypeVar("T")

_BUDGET_S = 10.0
"""How long the ops of one rank may be measured, if three rounds do not take longer."""


def measure_device(job: Job, context: JobContext, control: Control, *, host: str) -> tuple[RankProfile, ...]:
    """All ranks measure their devices; every rank returns all profiles."""
    rank = control.rank
    share = -(-context.info.global_batch // control.size)
    sizes = sizes_to_measure(share, fewest=context.limits.minimums[rank], most=context.limits.caps[rank])

    def measure() -> list[SizeSamples]:
        probe = OpProbe(context.workload, context.rank_context, seed=job.seed)
        try:
            return probe.measure(sizes, rounds=job.rounds, budget_s=_BUDGET_S)
        finally:
            probe.close()

    found = agreed(control, measure)
    codecs = one_by_one(control, lambda: measured_codecs(context), at_once=not context.cluster.is_emulated)
    own = rank_profile(context.graph, found, rank=rank, device=context.cluster.devices[rank].name, host=host)
    shared = control.share(to_data(dataclasses.replace(own, codecs=codecs)))
    return tuple(from_data(RankProfile, one, "the profile of a rank") for one in shared)


def one_by_one(control: Control, measure: Callable[[], T], *, at_once: bool) -> T:
    """Emulated ranks share the cores of one machine, but sleep for most of a step: they measure one after another,
    since at once they would slow each other down as they do not in training. Real ones measure `at_once`.
    """
    if at_once:
        return agreed(control, measure)
    found = [agreed(control, measure if rank == control.rank else _nothing) for rank in range(control.size)]
    return cast("T", found[control.rank])


def _nothing() -> None:
    """Another rank measures."""


def measured_codecs(context: JobContext) -> tuple[CodecProfile, ...]:
    """Every codec a plan may name that does anything."""
    names = [name for name in CODECS if name != "none"]
    found = measure_codecs(names, codec_sizes(context.graph.param_bytes), context.rank_context.torch_device)
    return tuple(codec_profile(name, samples) for name, samples in found.items())


def rank_profile(graph: OpGraph, found: Sequence[SizeSamples], *, rank: int, device: str, host: str) -> RankProfile:
    """Lines through what was measured at each size."""
    return RankProfile(
        rank=rank,
        device=device,
        host=host,
        compute=WorkFit.measured([(size.num_samples, size.step.compute_s) for size in found]),
        optimizer=WorkFit.measured([(size.num_samples, size.step.optimizer_s) for size in found]),
        data=WorkFit.measured([(size.num_samples, size.step.data_s) for size in found]),
        memory=MemoryFit.measured([(size.num_samples, size.peak_memory_bytes) for size in found]),
        ops=tuple(
            OpProfile(
                name=op.name,
                kind=op.kind,
                forward=WorkFit.measured([(size.num_samples, size.op_s(op.name)[0]) for size in found]),
                backward=WorkFit.measured([(size.num_samples, size.op_s(op.name)[1]) for size in found]),
            )
            for op in graph.ops
        ),
        steps=tuple(map(step_point, found)),
    )


def codec_profile(name: str, found: Sequence[CodecSample]) -> CodecProfile:
    """Lines through what was measured at each size."""
    return CodecProfile(
        name=name,
        encode=TransferFit.through([(size.num_bytes, size.encode_s) for size in found]),
        decode=TransferFit.through([(size.num_bytes, size.decode_s) for size in found]),
        rows=tuple(
            CodecRow(num_bytes=size.num_bytes, encode_s=size.encode_s, decode_s=size.decode_s) for size in found
        ),
    )


def step_point(size: SizeSamples) -> StepPoint:
    """Whole steps of one size beside the sum of their ops."""
    ops_s = sum(forward_s + backward_s for forward_s, backward_s in size.ops_s.values())
    return StepPoint(
        num_samples=size.num_samples,
        data_s=size.step.data_s,
        compute_s=size.step.compute_s,
        optimizer_s=size.step.optimizer_s,
        ops_s=ops_s,
        unattributed_s=size.step.compute_s - ops_s,
        peak_memory_bytes=size.peak_memory_bytes,
        late_s=size.step.late_s,
    )
