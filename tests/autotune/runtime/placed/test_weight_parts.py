"""Backward in two parts: the same gradients, each product computed once, and no shortcut where one would be wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from autotune.runtime.placed.weight_parts import WeightParts
from autotune.workloads.models import gpt, resnet


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(self.layer(inputs).relu())


class Borrowed(nn.Module):
    """A weight that is read past its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        return functional.linear(self.layer(self.other(inputs)), self.layer.weight)


class Beside(nn.Module):
    """A parameter beside a submodule, and a layer that is not called at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer, self.idle = nn.Parameter(torch.rand(4)), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(inputs * self.scale) * self.scale


def halves(module, inputs):
    """Gradients, and products computed in each half and in a backward in one piece."""
    parts = WeightParts(module)
    leaf = inputs.clone().requires_grad_()
    with parts.noting() as notes:
        output = module(leaf)
    gradient = torch.ones_like(output) * output.detach()
    counts = []
    with FlopCounterMode(display=False) as flops:
        notes.inputs([output], [gradient], (leaf,))
    counts.append(flops.get_total_flops())
    with FlopCounterMode(display=False) as flops:
        notes.weights([output], [gradient])
    counts.append(flops.get_total_flops())
    found = [leaf.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    again = inputs.clone().requires_grad_()
    output = module(again)
    with FlopCounterMode(display=False) as flops:
        torch.autograd.backward([output], [gradient])
    return found, [again.grad, *(p.grad for p in module.parameters())], counts, flops.get_total_flops()


@pytest.mark.parametrize("kind", [Twice, Borrowed, Beside])
def test_where_a_shortcut_would_be_wrong_none_is_taken(kind):
    torch.manual_seed(0)
    found, expected, _, _ = halves(kind().double(), torch.rand(3, 4, dtype=torch.float64))
    for one, other in zip(found, expected, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_no_product_is_computed_twice(name):
    torch.manual_seed(0)
    if name == "gpt":
        module, inputs = gpt.gpt(gpt.SIZES["tiny"])[1:3].double(), torch.rand(2, 16, 32, dtype=torch.float64)
    else:
        workload = resnet.workload(size="tiny", dtype="float64")
        module, inputs = workload.model()[3:], torch.rand(2, 12, 8, 8, dtype=torch.float64)
    found, expected, counts, whole = halves(module, inputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    assert sum(counts) == whole
    assert 0.3 < counts[1] / whole < 0.6
