"""Attributed times of modules with stated forward and backward times, on a clock that only these modules advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autotune.runtime.probe.module_clock import ModuleClock
from autotune.workloads.capture import LOSS


@dataclass
class FakeClock:
    now: float = 50.0

    def __call__(self) -> float:
        return self.now


CLOCK = FakeClock()


class _Take(torch.autograd.Function):
    """y = w · x, which takes `forward_s` and then `backward_s`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        ctx.save_for_backward(inputs, weight)
        CLOCK.now += forward_s
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        CLOCK.now += ctx.backward_s
        return grads[0] * weight, (grads[0] * inputs).sum(), None, None


def take(inputs: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
    out: Tensor = _Take.apply(inputs, weight, forward_s, backward_s)
    return out


class Busy(nn.Module):
    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.times = forward_s, backward_s

    def forward(self, inputs: Tensor) -> Tensor:
        return take(inputs, self.weight, *self.times)


class Between(nn.Module):
    """Functional work before, between and after its children, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Busy(1, 10), Busy(2, 20)
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        before = take(inputs, self.one, 100, 1000)
        between = take(self.first(before), self.one, 200, 2000)
        return take(self.second(between) + before, self.one, 400, 4000)


class Pair(nn.Module):
    """A tuple in, a tuple out, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Busy(1, 10), Busy(2, 20)

    def forward(self, *, both: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.left(both[0]), self.right(both[1])


class UsesPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.pair = Busy(4, 40), Pair()

    def forward(self, inputs: Tensor) -> Tensor:
        started = self.start(inputs)
        left, right = self.pair(both=(started, started * 2))
        return left + right


def split(model: nn.Module, loss: Callable[[Tensor], Tensor] = torch.sum) -> dict[str, tuple[float, float]]:
    begun = CLOCK.now
    with ModuleClock(model, CLOCK) as clock:
        clock.begin()
        value = loss(model(torch.ones(3)))
        clock.forward_done()
        value.backward()
        times = clock.end()
    assert sum(map(sum, times.values())) == CLOCK.now - begun, "every moment is some op's"
    return {name: time for name, time in times.items() if time != (0.0, 0.0)}


def test_layers_one_after_the_other() -> None:
    model = nn.Sequential(Busy(1, 10), Busy(2, 20), Busy(4, 40))
    assert split(model) == {"0": (1, 10), "1": (2, 20), "2": (4, 40)}


def test_a_container_takes_only_what_it_does_itself() -> None:
    model = nn.Sequential(Busy(1, 10), nn.Sequential(Busy(2, 20), nn.Sequential(Busy(4, 40))), Busy(8, 80))
    assert split(model) == {"0": (1, 10), "1.0": (2, 20), "1.1.0": (4, 40), "2": (8, 80)}


def test_functional_work_belongs_to_the_module_around() -> None:
    model = nn.Sequential(Busy(8, 80), Between(), Busy(16, 160))
    assert split(model) == {
        "0": (8, 80),
        "1": (700, 7000),
        "1.first": (1, 10),
        "1.second": (2, 20),
        "2": (16, 160),
    }


def test_work_of_the_model_itself_and_of_the_loss() -> None:
    weight = nn.Parameter(torch.ones(()))
    times = split(Between(), lambda out: take(out, weight, 3, 30).sum())
    assert times == {"(model)": (700, 7000), "first": (1, 10), "second": (2, 20), LOSS: (3, 30)}


def test_a_module_called_twice_takes_both() -> None:
    shared = Busy(1, 10)
    assert split(nn.Sequential(shared, Busy(2, 20), shared)) == {"0": (2, 20), "1": (2, 20)}


def test_modules_in_place_and_without_work_leave_their_neighbours_alone() -> None:
    model = nn.Sequential(Busy(1, 10), nn.ReLU(inplace=True), nn.Identity(), nn.Dropout(0.0), Busy(2, 20))
    assert split(model) == {"0": (1, 10), "4": (2, 20)}


def test_tuples_and_keywords() -> None:
    assert split(UsesPair()) == {"start": (4, 40), "pair.left": (1, 10), "pair.right": (2, 20)}


def test_a_branch_that_is_frozen_takes_no_backward() -> None:
    model = nn.Sequential(Busy(1, 10), Busy(2, 20))
    model[0].requires_grad_(requires_grad=False)
    assert split(model) == {"0": (1, 0), "1": (2, 20)}


def test_what_a_pacer_adds_after_a_module_is_that_modules() -> None:
    """A pacer's hooks, made before the clock's: after forward, on the parameter, and on an output without one."""
    model = nn.Sequential(Busy(1, 10), nn.ReLU(), Busy(2, 20))

    def nap(seconds: float) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            CLOCK.now += seconds

        return hook

    def on_output(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        CLOCK.now += 200
        output.register_hook(nap(2000))

    handles = [
        model[0].register_forward_hook(nap(100)),
        model[0].get_parameter("weight").register_hook(nap(1000)),
        model[1].register_forward_hook(on_output),
        model[2].register_forward_hook(nap(400)),
        model[2].get_parameter("weight").register_hook(nap(4000)),
    ]
    try:
        assert split(model) == {"0": (101, 1010), "1": (200, 2000), "2": (402, 4020)}
    finally:
        for handle in handles:
            handle.remove()


def test_hooks_are_gone_afterwards_and_gradients_are_what_they_were() -> None:
    model = Between()
    split(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    probed = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(torch.ones(3)).sum().backward()
    plain = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(probed, plain, strict=True))


def test_an_error_inside_leaves_no_hook() -> None:
    model = nn.Sequential(Busy(1, 10))
    with pytest.raises(RuntimeError), ModuleClock(model, CLOCK):
        model(torch.ones(3) @ torch.ones(4))
    assert not model._forward_hooks
