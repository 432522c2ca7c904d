"""Training on the fake accelerator equals training on the CPU, bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import tests.accelerator.fgpu  # noqa: F401
from autotune.workloads.registry import load_workload
from tests.accelerator.models import MODELS, train

fgpu = torch.get_device_module("fgpu")
OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "momentum foreach": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adamw foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
}


def same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][key], value) for key, value in other[1].items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_equals_the_cpu(model: str, optimizer: str) -> None:
    assert same(train(model, "fgpu", OPTIMIZERS[optimizer]), train(model, "cpu", OPTIMIZERS[optimizer]))


@pytest.mark.parametrize("model", MODELS)
def test_training_in_double_precision_on_another_device_and_stream(model: str) -> None:
    with fgpu.stream(fgpu.Stream("fgpu:2")):
        found = train(model, "fgpu:2", OPTIMIZERS["adam"], dtype=torch.float64)
    assert same(found, train(model, "cpu", OPTIMIZERS["adam"], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_equals_the_cpu(mask: str, dtype: torch.dtype) -> None:
    def attended(device: str) -> Any:
        torch.manual_seed(0)
        given = torch.randn(3, 2, 2, 5, 8, dtype=dtype).to(device).requires_grad_()
        seen = torch.ones(5, 5, dtype=torch.bool).tril().to(device)
        chosen = {"bool": seen, "float": seen.to(dtype)}.get(mask)
        out = functional.scaled_dot_product_attention(*given, attn_mask=chosen, is_causal=mask == "causal")
        out.square().sum().backward()
        return out.detach().cpu(), given.grad.cpu()

    assert all(map(torch.equal, attended("fgpu"), attended("cpu")))


@pytest.mark.parametrize("spec", ["mlp-tiny", "resnet-tiny", "gpt-tiny", "vgg-tiny"])
def test_workloads_train_as_on_the_cpu(spec: str) -> None:
    workload = load_workload(spec, {})

    def trained(device: str) -> Any:
        torch.manual_seed(0)
        model = workload.model().to(device)
        optimizer = workload.optimizer(model)
        losses = []
        for start in (0, 4):
            rows = [workload.dataset()[row] for row in range(start, start + 4)]
            loss = workload.loss(model, tuple(torch.stack(column).to(device) for column in zip(*rows, strict=True)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, {key: value.cpu() for key, value in model.state_dict().items()}

    assert same(trained("fgpu:1"), trained("cpu"))
