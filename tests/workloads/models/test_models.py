"""Every shipped workload keeps the promises of the protocol, and has the size that its table claims."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from autotune.workloads.errors import MissingDependencyError, SpecError
from autotune.workloads.models import digits, resnet, text
from autotune.workloads.models.base import SupervisedWorkload
from autotune.workloads.registry import load_workload
from autotune.workloads.workload import Workload

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZED = ("mlp", "vgg", "resnet", "gpt", "dlrm")
SPECS = [*(f"{model}-{size}" for model in SIZED for size in ("tiny", "small")), "digits", "text"]

PARAMETERS = {
    "mlp-tiny": (2e3, 5e3),
    "mlp-small": (0.9e6, 1.1e6),
    "mlp-large": (45e6, 55e6),
    "vgg-tiny": (90e3, 110e3),
    "vgg-small": (0.9e6, 1.1e6),
    "vgg-large": (132.8e6, 132.9e6),  # VGG-11: 132.86 M
    "resnet-tiny": (30e3, 60e3),
    "resnet-small": (100e3, 200e3),
    "resnet-large": (11.6e6, 11.8e6),  # ResNet-18: 11.69 M
    "gpt-tiny": (20e3, 40e3),
    "gpt-small": (200e3, 400e3),
    "gpt-large": (124e6, 125e6),  # GPT-2 small: 124.4 M
    "dlrm-tiny": (10e3, 20e3),
    "dlrm-small": (1.6e6, 1.9e6),
    "dlrm-large": (130e6, 140e6),
    "digits": (30e3, 50e3),
    "text": (100e3, 130e3),
}
FORWARD_FLOPS_PER_SAMPLE = {
    "vgg-tiny": (0.5e6, 1e6),
    "vgg-small": (4.5e6, 5.5e6),
    "resnet-tiny": (0.7e6, 1.3e6),
    "resnet-small": (4e6, 5.5e6),
    "gpt-small": (5e6, 8e6),
}


def build(workload: Workload, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return workload.model()


def tensors(workload: Workload) -> tuple[Tensor, ...]:
    data = workload.dataset()
    assert isinstance(data, TensorDataset)
    return data.tensors


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train(workload: Workload, model: nn.Module, num_steps: int) -> list[float]:
    """Plain training on one process, with batches drawn from a fixed seed."""
    data: Any = workload.dataset()
    optimizer = workload.optimizer(model)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(num_steps):
        batch = data[torch.randint(len(data), (workload.global_batch,), generator=generator)]
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("spec", SPECS)
class TestEveryWorkload:
    def test_meets_the_protocol(self, spec: str) -> None:
        workload = load_workload(spec)
        assert isinstance(workload, Workload)
        assert workload.name == spec
        assert workload.global_batch == 64
        assert workload.min_samples == 1
        assert len(tensors(workload)[0]) >= workload.global_batch

    def test_every_parameter_gets_a_finite_gradient(self, spec: str) -> None:
        workload = load_workload(spec)
        model = build(workload)
        torch.autograd.backward(workload.loss(model, workload.dataset()[torch.arange(8)]))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name

    def test_every_parameter_belongs_to_a_leaf_module(self, spec: str) -> None:
        owners = [module for module in build(load_workload(spec)).modules() if list(module.parameters(recurse=False))]
        assert owners
        assert not [owner for owner in owners if list(owner.children())]

    def test_dataset_repeats_and_leaves_the_global_generator_alone(self, spec: str) -> None:
        workload = load_workload(spec)
        before = torch.get_rng_state()
        first, second = tensors(workload), tensors(workload)
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_model_follows_the_seed(self, spec: str) -> None:
        workload = load_workload(spec)
        first, second, other = (list(build(workload, seed).parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))

    def test_loss_is_a_mean_over_samples(self, spec: str) -> None:
        """What makes uneven batches exact: the weighted mean of the parts is the whole, in loss and in gradient."""
        workload = load_workload(spec, {"dtype": "float64"})
        model, data = build(workload), workload.dataset()

        def loss_and_gradients(indices: Tensor) -> tuple[Tensor, list[Tensor]]:
            loss = workload.loss(model, data[indices])
            return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))

        whole, gradients = loss_and_gradients(torch.arange(12))
        first, first_gradients = loss_and_gradients(torch.arange(5))
        rest, rest_gradients = loss_and_gradients(torch.arange(5, 12))
        torch.testing.assert_close(whole, (5 * first + 7 * rest) / 12, rtol=1e-12, atol=1e-12)
        for a, b, expected in zip(first_gradients, rest_gradients, gradients, strict=True):
            torch.testing.assert_close((5 * a + 7 * b) / 12, expected, rtol=1e-9, atol=1e-12)

    def test_float64_starts_from_the_same_values(self, spec: str) -> None:
        single, double = load_workload(spec), load_workload(spec, {"dtype": "float64"})
        for a, b in zip(build(single).parameters(), build(double).parameters(), strict=True):
            assert b.dtype == torch.float64
            assert torch.equal(a.double(), b)
        inputs, wide_inputs = tensors(single)[0], tensors(double)[0]
        assert wide_inputs.dtype == (torch.float64 if inputs.is_floating_point() else torch.int64)
        assert torch.equal(inputs.double(), wide_inputs.double())

    def test_first_loss_is_that_of_a_guess(self, spec: str) -> None:
        workload = load_workload(spec)
        num_answers = int(tensors(workload)[-1].max()) + 1
        with torch.no_grad():
            loss = workload.loss(build(workload), workload.dataset()[torch.arange(64)])
        assert loss.item() == pytest.approx(math.log(num_answers), rel=0.15)

    def test_global_batch_can_be_set(self, spec: str) -> None:
        workload = load_workload(spec, {"global_batch": "1280"})
        assert workload.global_batch == 1280
        assert len(tensors(workload)[0]) >= 1280
        with pytest.raises(SpecError, match="at least 1"):
            load_workload(spec, {"global_batch": "-1"})


@pytest.mark.parametrize("spec", ["mlp-tiny", "vgg-tiny", "resnet-tiny", "gpt-tiny", "dlrm-tiny"])
def test_loss_falls(spec: str) -> None:
    workload = load_workload(spec)
    losses = train(workload, build(workload), num_steps=80)
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


@pytest.mark.parametrize("spec", PARAMETERS)
def test_number_of_parameters(spec: str) -> None:
    """On the meta device, so that the large sizes take no memory."""
    low, high = PARAMETERS[spec]
    with torch.device("meta"):
        model = load_workload(spec).model()
    assert low <= num_parameters(model) <= high


@pytest.mark.parametrize("spec", FORWARD_FLOPS_PER_SAMPLE)
def test_forward_flops_per_sample(spec: str) -> None:
    """Two FLOPs per multiply-add. The plain attention kernel, because torch does not count the CPU's fused one."""
    low, high = FORWARD_FLOPS_PER_SAMPLE[spec]
    workload = load_workload(spec)
    model, inputs = build(workload), tensors(workload)[0]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs[:4])
    assert low <= counter.get_total_flops() / 4 <= high


def test_most_parameters_of_vgg_are_in_its_linear_layers() -> None:
    model = build(load_workload("vgg"))
    in_linear = sum(num_parameters(module) for module in model.modules() if isinstance(module, nn.Linear))
    assert in_linear > 0.9 * num_parameters(model)


def test_gpt_cannot_see_the_future() -> None:
    workload = load_workload("gpt-tiny")
    model, tokens = build(workload), tensors(workload)[0][:2]
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 64
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_gpt_head_shares_the_embedding_in_every_dtype() -> None:
    for dtype in ("float32", "float64"):
        model = build(load_workload("gpt-tiny", {"dtype": dtype}))
        assert model.get_parameter("0.token.weight") is model.get_parameter("4.weight")


def test_resnet_with_batch_norm_asks_for_two_samples() -> None:
    workload = resnet.workload(size="tiny", norm="batch")
    model = build(workload)
    assert workload.min_samples == 2
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert not any(isinstance(module, nn.GroupNorm) for module in model.modules())
    torch.autograd.backward(workload.loss(model, workload.dataset()[torch.arange(2)]))


@pytest.mark.parametrize(
    ("spec", "option", "guess"),
    [
        *((model, {"size": "smal"}, "unknown size 'smal': did you mean 'small'") for model in SIZED),
        ("resnet", {"norm": "bach"}, "unknown norm 'bach': did you mean 'batch'"),
        ("digits", {"dtype": "float23"}, "unknown dtype 'float23': did you mean 'float32'"),
    ],
)
def test_misspelt_options_are_guessed(spec: str, option: dict[str, str], guess: str) -> None:
    with pytest.raises(SpecError, match=guess):
        load_workload(spec, option)


class TestDigits:
    def test_converges(self) -> None:
        workload = digits.workload()
        model = build(workload)
        assert workload.accuracy(model) < 0.5
        train(workload, model, num_steps=300)
        assert model.training
        assert 0.95 <= workload.accuracy(model) <= 1.0

    def test_no_test_digit_is_trained_on(self) -> None:
        train_images, test_images = digits.train_set().tensors[0], digits.test_set().tensors[0]
        assert (len(train_images), len(test_images)) == (1437, 360)
        seen = {image.numpy().tobytes() for image in train_images}
        assert not [image for image in test_images if image.numpy().tobytes() in seen]

    def test_batch_larger_than_the_data_is_refused(self) -> None:
        with pytest.raises(SpecError, match="at most 1437"):
            digits.workload(global_batch=1438)

    def test_missing_scikit_learn_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(MissingDependencyError, match=r"hetero-autotune\[data\]"):
            digits.workload().dataset()


class TestText:
    def test_learns_to_guess_text_it_has_not_seen(self) -> None:
        workload = text.workload()
        model = build(workload)
        assert workload.accuracy(model) < 0.05
        train(workload, model, num_steps=40)
        assert model.training
        assert workload.accuracy(model) > 0.15  # spaces alone are a seventh of English

    def test_held_out_text_follows_what_is_trained_on(self) -> None:
        workload = text.workload()
        trained, held_out = (data.tensors[0].numel() for data in (workload.dataset(), workload.held_out))
        assert held_out == pytest.approx(trained / 9, rel=0.01)
        inputs, targets = workload.dataset().tensors
        assert torch.equal(inputs[1:, 0], targets[:-1, -1])

    def test_a_file_of_ones_own(self, tmp_path: Path) -> None:
        (tmp_path / "own.txt").write_bytes(b"abcd" * 2000)
        workload = load_workload("text", {"path": str(tmp_path / "own.txt")})
        assert set(tensors(workload)[0].flatten().tolist()) == set(b"abcd")
        with pytest.raises(SpecError, match="of 8000 bytes has 224 samples of 32 to train on"):
            load_workload("text", {"path": str(tmp_path / "own.txt"), "global_batch": "500"})

    def test_a_missing_file_is_named(self) -> None:
        with pytest.raises(SpecError, match=r"cannot read 'nowhere.txt': No such file"):
            load_workload("text", {"path": "nowhere.txt"})


def test_the_example_is_a_workload_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_workload", raising=False)
    workload = load_workload("own_workload:factory", {"width": "32"})
    assert not isinstance(workload, SupervisedWorkload)
    losses = train(workload, build(workload), num_steps=300)
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]
