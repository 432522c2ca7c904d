"""What a pipeline must give: the gradients of the unsplit model over the same micro-batches, and how far off others are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from autotune.runtime.placed.batch_cut import BatchCut
from autotune.workloads.workload import Workload

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def seeded(workload: Workload, seed: int = 3) -> nn.Module:
    """The model as every rank draws it."""
    torch.manual_seed(seed)
    return workload.model()


def batch_of(workload: Workload, num_samples: int) -> tuple[Tensor, ...]:
    """The first samples, as tensors."""
    tensors = workload.dataset().tensors
    return tuple(tensor[:num_samples] for tensor in tensors)


def reference(
    model: nn.Module, loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor], batch: Sequence[Tensor], cut: BatchCut
) -> tuple[dict[str, Tensor], float]:
    """Gradients by name, and the loss, micro-batch by micro-batch."""
    model = copy.deepcopy(model)
    total = 0.0
    for microbatch in range(len(cut.samples[0])):
        for lane in range(len(cut.samples)):
            rows = cut.rows(lane, microbatch)
            part = loss(model, tuple(tensor[rows] for tensor in batch)) * cut.weight(lane, microbatch)
            part.backward()
            total += float(part.detach())
    return {name: p.grad.clone() for name, p in model.named_parameters()}, total


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of the norm over all parameters."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[name] - expected[name]).double().square().sum()) for name in expected)
    size = sum(float(expected[name].double().square().sum()) for name in expected)
    return (apart / size) ** 0.5
