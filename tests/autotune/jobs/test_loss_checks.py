"""Losses that the runtime would train wrongly with are refused at set-up; every shipped workload passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune.jobs.context import capture_workload
from autotune.jobs.loss_checks import check_loss
from autotune.workloads.errors import SpecError
from autotune.workloads.registry import MODELS, load_workload

SIZED = ("mlp", "vgg", "resnet", "gpt")
SHIPPED = [f"{model}-tiny" if model in SIZED else model for model in MODELS]


class Job:
    """A regression on eight samples with the loss that a test wants."""

    name = "job"
    global_batch = 8
    min_samples = 1

    def __init__(self, loss: Callable[[Tensor, Tensor], Any], layer: nn.Module | None = None) -> None:
        self._loss, self._layer = loss, layer or nn.Identity()

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), self._layer, nn.Linear(16, 1))

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return self._loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


def refusal(job: Any) -> str:
    with pytest.raises(SpecError) as caught:
        capture_workload(job, 0, name="bad:factory")
    return str(caught.value)


def mean(out: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(out, target)


@pytest.mark.parametrize("name", [*SHIPPED, "resnet-tiny norm=sync"])
def test_no_shipped_workload_is_refused(name: str) -> None:
    spec, _, option = name.partition(" ")
    workload = load_workload(spec, dict([option.split("=")]) if option else {})
    torch.manual_seed(0)
    data = workload.dataset()
    check_loss(workload, workload.model(), lambda indices: data[indices], name=spec)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda o, t: {"loss": mean(o, t)}, 'loss() returned a dict; return one scalar tensor, the mean over samples (`out["loss"]`)'),
        (lambda o, t: (mean(o, t), o), "loss() returned a tuple; return one scalar tensor, the mean over samples (`out[0]`)"),
        (lambda o, t: mean(o, t).item(), "loss() returned a float; return one scalar tensor, the mean over samples (without .item())"),
        (lambda _o, _t: None, "loss() returned None; return one scalar tensor, the mean over samples"),
        (lambda o, t: (o - t) ** 2, "loss() returned a tensor of shape (2, 1); return one scalar tensor, the mean over samples (`.mean()`)"),
    ],
)  # fmt: skip
def test_what_is_no_scalar_tensor_is_refused(loss: Callable[[Tensor, Tensor], Any], text: str) -> None:
    assert refusal(Job(loss)) == f"bad:factory: {text}"


def test_a_loss_without_a_gradient_is_refused() -> None:
    assert "a tensor without a gradient" in refusal(Job(lambda o, t: mean(o, t).detach()))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_is_refused(value: str) -> None:
    assert f"bad:factory: loss() is {value} for the first samples" in refusal(
        Job(lambda o, t: mean(o, t) + float(value))
    )


def test_an_exception_of_the_loss_names_the_workload() -> None:
    def loss(_out: Tensor, _target: Tensor) -> Tensor:
        raise KeyError("labels")

    assert refusal(Job(loss)) == "bad:factory: loss() raised KeyError: 'labels'"


@pytest.mark.parametrize("scale", [1.0, 1 / 8])
def test_a_sum_over_samples_is_distinguished_from_a_mean(scale: float) -> None:
    message = refusal(Job(lambda o, t: scale * functional.mse_loss(o, t, reduction="sum")))
    assert message.startswith("bad:factory: loss() is a sum over samples: ")
    assert 'return the mean over samples (reduction="mean")' in message


def test_a_loss_that_compares_samples_is_not_their_mean() -> None:
    message = refusal(Job(lambda o, t: mean(o, t) + o.var()))
    assert message.startswith("bad:factory: loss() is not the mean over samples: ")
    assert "loss_weights" in message


class Weighted(Job):
    """A mean over tokens, of which samples have one to eight."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens = 1 + (batch[0][:, 0].abs() * 3).floor()
        return (tokens * (model(batch[0]) - batch[1]).squeeze(1) ** 2).sum() / tokens.sum()


class Stated(Weighted):
    def loss_weights(self, dataset: TensorDataset) -> Tensor:
        return 1 + (dataset.tensors[0][:, 0].abs() * 3).floor()


def test_a_mean_over_tokens_is_one_where_the_weights_are_stated() -> None:
    assert "is not the mean over samples" in refusal(Weighted(mean))
    capture_workload(Stated(mean), 0)


@pytest.mark.parametrize(
    "job",
    [
        Job(mean, nn.Dropout(0.5)),
        Job(mean, nn.BatchNorm1d(16)),
        Job(mean, nn.BatchNorm1d(16, track_running_stats=False)),
        Job(lambda o, t: mean(functional.dropout(o, 0.5), t)),
        Job(lambda o, t: mean(o, t) + 0.1 * torch.rand(())),
        Job(lambda o, t: mean(o.bfloat16(), t.bfloat16())),
        Job(lambda o, t: mean(o, t) + 1.0),
    ],
    ids=["dropout", "batch norm", "no running statistics", "noise in eval mode", "random loss", "bfloat16", "constant"],
)
def test_nothing_is_concluded_from_noise_or_rounding(job: Job) -> None:
    capture_workload(job, 0)


def test_a_model_without_an_eval_mode_is_not_refused() -> None:
    class TrainsOnly(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert self.training
            return x

    capture_workload(Job(mean, TrainsOnly()), 0)


def test_a_loss_may_take_its_batch_apart() -> None:
    class Popping(Job):
        def collate(self, samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
            return {"x": torch.stack([s[0] for s in samples]), "y": torch.stack([s[1] for s in samples])}

        def loss(self, model: nn.Module, batch: Any) -> Any:
            return mean(model(batch.pop("x")), batch.pop("y"))

    capture_workload(Popping(mean), 0)


def test_the_model_and_the_generator_are_left_as_they_were() -> None:
    job = Job(mean, nn.BatchNorm1d(16))
    model, data = job.model(), job.dataset()
    before = [buffer.clone() for buffer in model.buffers()]
    torch.manual_seed(7)
    check_loss(job, model, lambda indices: data[indices], name="job")
    assert model.training
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))
