"""Emulated devices: time passes as stated, gradients appear no sooner, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from autotune.runtime.emulate import device_pacer
from autotune.runtime.emulate.device_pacer import DevicePacer
from autotune.simulate.roofline import compute_s, op_s
from autotune.workloads.capture import LOSS, capture
from autotune.workloads.cluster import Device
from autotune.workloads.graph import OpGraph

SLACK_S = device_pacer._MIN_SLEEP_S
"""A debt below the shortest sleep is carried over."""
SAMPLES = 6


@dataclass
class FakeTime:
    """A clock that advances by sleeping, and optionally by reading it: real work that takes time."""

    now: float = 100.0
    tick_s: float = 0.0
    naps: list[float] = field(default_factory=list)

    def perf_counter(self) -> float:
        self.now += self.tick_s
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(device_pacer, "time", clock)
    return clock


class Residual(nn.Module):
    """Functional work of its own, a skip connection, and a parameter beside its child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))
        self.child = nn.Linear(12, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.relu(self.child(inputs)) * self.scale


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(12, 12)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        words = self.before(inputs).unsqueeze(1)
        return self.attention(words, words, words)[0].squeeze(1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))


def twice() -> nn.Module:
    shared = nn.Linear(12, 12)
    return nn.Sequential(nn.Linear(12, 12), shared, nn.ReLU(), shared)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12))
    model[2].weight = model[1].weight
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3))
    model[2].requires_grad_(requires_grad=False)
    return model


def residual() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12), Residual(), nn.Dropout(0.0), nn.Linear(12, 3))


MODELS = [mlp, twice, tied, frozen, residual, Attentive]


def loss_of(model: nn.Module, count: int = SAMPLES) -> Tensor:
    inputs = torch.randn(count, 12, generator=torch.Generator().manual_seed(count))
    loss: Tensor = model(inputs).square().mean()
    return loss


def graph_of(model: nn.Module) -> OpGraph:
    return capture(model, lambda count: loss_of(model, count))


def step(model: nn.Module, pacer: DevicePacer, count: int = SAMPLES) -> None:
    """One step as the trainer makes it."""
    pacer.begin(count)
    loss = loss_of(model, count)
    pacer.after_loss()
    torch.autograd.backward(loss)


def slow(graph: OpGraph, step_s: float, *, launch_s: float = 0.0) -> Device:
    """A device that takes `step_s` for a step (and the launches on top), most of it arithmetic."""
    unit = Device(name="unit", flops_per_s=1.0, memory_bytes_per_s=1.0)
    speed = compute_s(graph, unit, SAMPLES) / step_s
    return Device(name="slow", flops_per_s=speed, memory_bytes_per_s=speed, launch_s=launch_s)


# --- how long ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("launch_s", [0.0, 0.05])
def test_a_step_takes_exactly_the_time_of_the_cost_function(
    build: Callable[[], nn.Module], launch_s: float, fake: FakeTime
) -> None:
    """On a machine whose real work takes no time, so that only the pacer's arithmetic counts."""
    model = build()
    graph = graph_of(model)
    device = slow(graph, 10.0, launch_s=launch_s)
    pacer = DevicePacer(model, graph, device)
    for _ in range(2):
        begin_s = fake.now
        step(model, pacer)
        assert fake.now - begin_s == pytest.approx(compute_s(graph, device, SAMPLES), abs=2 * SLACK_S)


def test_a_step_of_more_samples_takes_more_time(fake: FakeTime) -> None:
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    pacer = DevicePacer(model, graph, device)
    for count in (1, 5, 30):
        begin_s = fake.now
        step(model, pacer, count)
        assert fake.now - begin_s == pytest.approx(compute_s(graph, device, count), abs=2 * SLACK_S)


def test_real_work_is_hidden_in_the_sleep(fake: FakeTime) -> None:
    """Every reading of the clock costs 50 ms of real work; the step still takes ten seconds."""
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 10.0))
    fake.tick_s = 0.05
    begin_s = fake.now
    step(model, pacer)
    assert fake.now - begin_s == pytest.approx(10.0, abs=0.2)


def test_a_small_net_really_takes_the_stated_time_within_five_percent() -> None:
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 0.1)
    pacer = DevicePacer(model, graph, device)
    expected_s = compute_s(graph, device, SAMPLES)
    ratios = []
    for _ in range(8):
        begin_s = time.perf_counter()
        step(model, pacer)
        ratios.append((time.perf_counter() - begin_s) / expected_s)
    assert min(abs(ratio - 1) for ratio in ratios) < 0.05
    assert min(ratios) > 0.99


# --- late --------------------------------------------------------------------------------------------------------------


def test_a_machine_that_keeps_the_pace_is_not_late(fake: FakeTime) -> None:
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 10.0))
    step(model, pacer)
    assert pacer.late_s == 0.0


def test_a_machine_slower_than_the_device_reports_by_how_much(fake: FakeTime) -> None:
    """The device needs a millisecond in total, real work a second between two readings of the clock."""
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 0.001))
    fake.tick_s = 1.0
    begin_s = fake.now
    step(model, pacer)
    elapsed_s = fake.now - begin_s
    assert elapsed_s > 5.0
    assert pacer.late_s == pytest.approx(elapsed_s - 0.001 - fake.tick_s, abs=0.01)
    assert fake.naps == []


def test_the_delay_is_reset_when_the_next_step_begins(fake: FakeTime) -> None:
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 10.0))
    fake.tick_s = 100.0
    step(model, pacer)
    assert pacer.late_s > 100.0
    fake.tick_s = 0.0
    begin_s = fake.now
    step(model, pacer)
    assert pacer.late_s == 0.0
    assert fake.now - begin_s == pytest.approx(10.0, abs=2 * SLACK_S)


# --- when gradients appear ---------------------------------------------------------------------------------------------


def accumulation_times(model: nn.Module, graph: OpGraph, device: Device, fake: FakeTime) -> dict[str, float]:
    """When each parameter's gradient was accumulated, from the step's begin.

    A waiter for gradients may register its hooks before the pacer, so these hooks are registered first.
    """
    times: dict[str, float] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: times.__setitem__(names[id(p)], fake.now))
    pacer = DevicePacer(model, graph, device)
    begin_s = fake.now
    step(model, pacer)
    return {name: at_s - begin_s for name, at_s in times.items()}


def due_times(graph: OpGraph, device: Device, layers: tuple[str, ...]) -> dict[str, float]:
    """When the gradients of each layer are computed: after forward, the loss, and backward from the last layer to it."""
    ops = {op.name: op for op in graph.ops}
    due_s = sum(op_s(op, device, SAMPLES) for op in graph.ops)
    due_s += op_s(ops[LOSS], device, SAMPLES, backward=True) + op_s(ops["(model)"], device, SAMPLES, backward=True)
    due = {}
    for layer in layers:
        due_s += op_s(ops[layer], device, SAMPLES, backward=True)
        due[layer] = due_s
    return due


def test_a_gradient_is_accumulated_only_after_its_layer_has_slept(fake: FakeTime) -> None:
    """No gradient may leave before its device would have had it."""
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    found = accumulation_times(model, graph, device, fake)
    due = due_times(graph, device, ("4", "3", "2", "1", "0"))
    for layer in ("4", "2", "0"):
        for kind in ("weight", "bias"):
            assert found[f"{layer}.{kind}"] == pytest.approx(due[layer], abs=2 * SLACK_S), f"layer {layer}"


def test_a_layer_whose_weights_are_tied_to_an_earlier_one_sleeps_at_its_own_time(fake: FakeTime) -> None:
    """The tied gradient is complete only at the end; the layers between must not be early for it."""
    model = nn.Sequential(*(nn.Linear(12, 12, bias=False) for _ in range(3)))
    model[2].weight = model[0].weight
    graph = graph_of(model)
    device = slow(graph, 10.0)
    found = accumulation_times(model, graph, device, fake)
    due = due_times(graph, device, ("2", "1", "0"))
    assert found["1.weight"] == pytest.approx(due["1"], abs=2 * SLACK_S)


@pytest.mark.parametrize("build", [mlp, residual, frozen])
def test_the_last_gradient_appears_when_the_step_is_done(build: Callable[[], nn.Module], fake: FakeTime) -> None:
    model = build()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    found = accumulation_times(model, graph, device, fake)
    assert max(found.values()) == pytest.approx(compute_s(graph, device, SAMPLES), abs=2 * SLACK_S)


def test_no_gradient_appears_before_forward_and_loss_have_passed(fake: FakeTime) -> None:
    model = residual()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    forward_s = sum(op_s(op, device, SAMPLES) for op in graph.ops)
    found = accumulation_times(model, graph, device, fake)
    assert min(found.values()) > forward_s - SLACK_S


# --- arithmetic of another thread ----------------------------------------------------------------------------------------


def test_what_an_idle_device_rebuilds_is_not_charged_again(fake: FakeTime) -> None:
    """After a step's backward pass: it takes its time then, and the next step takes no longer."""
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    pacer = DevicePacer(model, graph, device)
    assert device.flops_per_s is not None
    for _ in range(2):
        begin_s = fake.now
        step(model, pacer)
        pacer.rebuild(3.0 * device.flops_per_s)
        assert fake.now - begin_s == pytest.approx(13.0, abs=3 * SLACK_S)


def test_what_is_rebuilt_during_a_wait_is_no_part_of_it(fake: FakeTime) -> None:
    """A forward pass waits for 4 s, in which the device rebuilds for 3: it goes on after these 4 s."""
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    pacer = DevicePacer(model, graph, device)
    assert device.flops_per_s is not None
    begin_s = fake.now
    pacer.begin(SAMPLES)
    fake.now += 1.0
    pacer.rebuild(3.0 * device.flops_per_s)
    pacer.idle(4.0)
    loss = loss_of(model)
    pacer.after_loss()
    torch.autograd.backward(loss)
    assert fake.now - begin_s == pytest.approx(14.0, abs=3 * SLACK_S)


def test_what_a_busy_device_rebuilds_delays_what_follows(fake: FakeTime) -> None:
    """In the middle of a module: the sum is rebuilt after that module, before the next one."""
    model = mlp()
    graph = graph_of(model)
    device = slow(graph, 10.0)
    pacer = DevicePacer(model, graph, device)
    assert device.flops_per_s is not None
    seconds = iter([3.0])

    def sleep(duration: float) -> None:
        for owed in seconds:
            pacer.rebuild(owed * device.flops_per_s)
            return
        fake.now += duration

    begin_s = fake.now
    fake.sleep = sleep  # type: ignore[method-assign]
    step(model, pacer)
    assert fake.now - begin_s == pytest.approx(13.0, abs=3 * SLACK_S)


# --- nothing else changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.usefixtures("fake")
def test_real_gradients_are_unchanged(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    model = build()
    torch.autograd.backward(loss_of(model))
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    graph = graph_of(model)
    step(model, DevicePacer(model, graph, slow(graph, 10.0)))
    paced = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert paced.keys() == plain.keys()
    assert all(torch.equal(gradient, plain[name]) for name, gradient in paced.items())


def test_a_detached_pacer_lets_time_pass_as_it_will(fake: FakeTime) -> None:
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 10.0))
    pacer.begin(SAMPLES)
    pacer.detach()
    torch.autograd.backward(loss_of(model))
    assert fake.naps == []
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_very_short_sleeps_are_saved_up(fake: FakeTime) -> None:
    """A sleep of microseconds overshoots by as much as it lasts: the debt is carried to the next module."""
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 4 * SLACK_S))
    begin_s = fake.now
    step(model, pacer)
    assert all(nap > SLACK_S for nap in fake.naps)
    assert fake.now - begin_s == pytest.approx(4 * SLACK_S, abs=SLACK_S)


def test_a_device_that_slows_down_between_steps_takes_longer_from_then_on(fake: FakeTime) -> None:
    model = mlp()
    graph = graph_of(model)
    pacer = DevicePacer(model, graph, slow(graph, 10.0))
    for seconds in (10.0, 30.0, 10.0):
        pacer.device = slow(graph, seconds)
        begin_s = fake.now
        step(model, pacer)
        assert fake.now - begin_s == pytest.approx(seconds, abs=2 * SLACK_S)
