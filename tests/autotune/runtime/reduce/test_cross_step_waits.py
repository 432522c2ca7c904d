"""What waits for what while gradients are in flight, and how the failure of a rank reaches the others."""

from __future__ import annotations

import copy
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.transport.traced_group import TracedGroup
from autotune.runtime.transport.wrapped_group import WrappedGroup
from tests.autotune.runtime.reduce.cross_step_jobs import (
    FIXED_ORDER,
    OPTIMIZERS,
    batch,
    distance,
    loss_of,
    mlp,
    model_of,
    own_rows,
    reducer_of,
    train_plainly,
)
from tests.gloo_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class Detour(nn.Module):
    """Uses the second layer's weight before the second layer runs, but not in the first steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(5, 5, bias=False) for _ in range(3))
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        x = self.first(x)
        if self.num_calls > 2:
            x = nn.functional.linear(x, self.second.weight)
        return self.third(self.second(x))


class Slow(WrappedGroup):
    """Every all-reduce takes a while."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        work = self._inner.allreduce(tensors, opts)
        return SimpleNamespace(wait=lambda: (time.sleep(0.05), work.wait()))


def test_a_weight_that_is_read_before_its_layer_runs_is_waited_for() -> None:
    """Also if that begins only after steps overlap."""

    def run(group: dist.ProcessGroup) -> str:
        torch.manual_seed(0)
        model = Detour().double()
        plain = copy.deepcopy(model)
        train_plainly(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, Slow(group), partition_bytes=200, credit_bytes=1)
        try:
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, batch(step)).backward()
                optimizer.step()
                optimizer.param_groups[0]["lr"] *= 0.97
        except RuntimeError as error:
            reducer.detach(error)
            return str(error)
        reducer.detach()
        return "" if distance(model, plain) <= 1e-12 else f"{distance(model, plain)}"

    (message,) = on_ranks(1, run)
    assert not message


def test_the_next_step_begins_before_the_last_gradients_have_arrived() -> None:
    """Three exchanges of 50 ms each, one after the other: the first layer runs when its own has completed."""

    def run(group: dist.ProcessGroup) -> list[float]:
        model = Detour().double()
        model.num_calls = -100  # no detours
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, Slow(group), partition_bytes=200, credit_bytes=1)
        reached: dict[str, float] = {}
        for name, module in model.named_children():
            module.register_forward_hook(lambda *_, name=name: reached.update({name: time.monotonic()}))
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        reducer.detach()
        return [reached[name] for name in ("first", "second", "third")]

    ((first, second, third),) = on_ranks(1, run)
    assert second - first > 0.03
    assert third - second < 0.03  # its own exchange went first, before the others were ready


def test_waiting_between_steps_is_no_wait_of_a_forward_pass() -> None:
    """It separates the computing of a step from its waiting."""

    def run(group: dist.ProcessGroup) -> tuple[float, float, float]:
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, Slow(group), partition_bytes=4000, credit_bytes=1)
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
        reducer.sent()
        begun_s = time.monotonic()
        reducer.flush()
        flushed_s = time.monotonic() - begun_s
        between_s = reducer.sent().stalled_s
        loss_of(model, batch(3)).backward()
        optimizer.step()
        model(batch(4))
        stalled_s = reducer.sent().stalled_s
        reducer.detach()
        return flushed_s, between_s, stalled_s

    ((flushed_s, between_s, stalled_s),) = on_ranks(1, run)
    assert flushed_s > 0.03
    assert between_s == 0
    assert stalled_s > 0.03


def test_reading_what_was_sent_waits_for_nothing() -> None:
    """A recording group waits for all transfers when read; an overlapped step must not."""

    def run(group: dist.ProcessGroup) -> float:
        traced = TracedGroup(Slow(group))
        traced.recording = True
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, traced, partition_bytes=4000, credit_bytes=1)
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
        begun_s = time.monotonic()
        reducer.sent()
        taken_s = time.monotonic() - begun_s
        reducer.detach()
        return taken_s

    (taken_s,) = on_ranks(1, run)
    assert taken_s < 0.03


@pytest.mark.parametrize(
    "comm",
    [{}, FIXED_ORDER, FIXED_ORDER | {"crosses_steps": False}],
    ids=["scheduled", "fixed order", "fixed order, barrier"],
)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("at", ["forward", "backward"])
def test_a_failure_of_one_rank_ends_the_step_on_all_ranks(failing: int, at: str, comm: dict[str, Any]) -> None:
    def run(group: dist.ProcessGroup) -> Exception | None:
        model = model_of("mlp")
        optimizer = OPTIMIZERS["adam"](model.parameters())
        reducer = reducer_of(model, optimizer, group, **comm)

        def fail(*_: Any) -> None:
            raise ValueError("out of luck")

        try:
            for step in range(20):
                if group.rank() == failing and step == 3:
                    if at == "forward":
                        model[2].register_forward_pre_hook(fail)
                    else:
                        model[2].weight.register_hook(fail)
                optimizer.zero_grad()
                loss_of(model, own_rows(batch(step), group)).backward()
                optimizer.step()
        except Exception as error:  # noqa: BLE001 - returned
            reducer.detach(error)
            return error.with_traceback(None)  # it holds this frame, which holds the group
        reducer.detach()
        return None

    errors = on_ranks(3, run)
    assert isinstance(errors[failing], ValueError)
    others = [error for rank, error in enumerate(errors) if rank != failing]
    assert all("out of luck" in str(error) for error in others), errors
