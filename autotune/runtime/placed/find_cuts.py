"""Where a workload's model can be cut into stages, and the bytes at each cut, from one forward pass of the model.

Stages are whole modules, called one after another, so a cut lies between two modules. The bytes between them are measured by
calling them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autotune.runtime.data.batches import batches_of
from autotune.runtime.placed.stages import cut_ops, module_of_op, stage_modules
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.workload import Workload, loop_of


def stage_cuts(workload: Workload, graph: OpGraph, seed: int) -> StageCuts | None:
    """None where the model cannot be cut: it is no sequence of modules, or passes something other than one tensor between them."""
    if getattr(workload, "sync_norm", False) or loop_of(workload).settings:
        return None
    torch.manual_seed(seed)
    model = workload.model()
    try:
        modules = stage_modules(workload, model)
        owner = module_of_op(graph, model, modules)
    except SpecError:
        return None
    sizes = _stream_bytes(workload, model, modules, seed)
    allowed = cut_ops(owner)
    if sizes is None or len(allowed) < 2:
        return None
    return StageCuts(
        first_ops=tuple(allowed),
        stream_bytes=(0.0, *(sizes[min(owner[first:]) - 1] for first in allowed[1:])),
        min_samples=workload.min_samples,
    )


def _stream_bytes(
    workload: Workload, model: torch.nn.Module, modules: list[torch.nn.Module], seed: int
) -> list[float] | None:
    """Per module: output bytes per sample."""
    count = max(workload.min_samples, 1)
    batch = batches_of(workload, (workload.global_batch,), 0, seed=seed).fetch(torch.arange(count))
    if not isinstance(batch, tuple | list) or not all(isinstance(one, Tensor) for one in batch):
        return None
    model.eval()
    stream, sizes = batch[0], []
    for module in modules:
        try:
            with torch.no_grad():
                stream = module(stream)
        except Exception:  # noqa: BLE001 - a model that is not called like this cannot be cut like this
            return None
        if not isinstance(stream, Tensor):
            return None
        sizes.append(stream.numel() * stream.element_size() / count)
    return sizes
