"""Scheduled training equals plain training for every optimizer, model, partition size and order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.workloads.errors import SpecError
from tests.autotune.runtime.reduce.cross_step_jobs import (
    FIXED_ORDER,
    MODELS,
    OPTIMIZERS,
    batch,
    compare,
    distance,
    groups_of,
    loss_of,
    model_of,
    own_rows,
    reducer_of,
    train_plainly,
)
from tests.gloo_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case[0] == 3 and case[2] != "adamw" and not case[3] else ())
    for case in itertools.product([1, 3], MODELS, OPTIMIZERS, [True, False])
]
"""Three ranks without overlap train by one optimizer in the default tests."""


@pytest.mark.parametrize(("size", "name", "optimizer_name", "crosses_steps"), CASES)
def test_parameters_are_those_of_plain_training(size: int, name: str, optimizer_name: str, crosses_steps: bool) -> None:
    plain = model_of(name)
    plain_optimizer = OPTIMIZERS[optimizer_name](groups_of(plain))
    train_plainly(plain, plain_optimizer, 12)

    def run(group: dist.ProcessGroup) -> tuple[float, bool]:
        model = model_of(name)
        optimizer = OPTIMIZERS[optimizer_name](groups_of(model))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        reducer = reducer_of(model, optimizer, group, crosses_steps=crosses_steps)
        for step in range(12):
            loss = loss_of(model, own_rows(batch(step), group))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        state, model_state = optimizer.state_dict(), model.state_dict()
        reducer.detach()
        same_keys = _shape_of(state) == _shape_of(plain_optimizer.state_dict())
        return distance(model, plain), same_keys and list(model_state) == list(plain.state_dict())

    for found in on_ranks(size, run):
        assert not isinstance(found, Exception), found
        assert found[0] <= 1e-10
        assert found[1]


def _shape_of(state: dict[str, Any]) -> Any:
    states = {key: sorted(entry) for key, entry in state["state"].items()}
    return states, [{k: v for k, v in group.items() if k != "lr"} for group in state["param_groups"]]


def test_steps_really_overlap() -> None:
    """After the first step, `step()` returns while gradients are in flight."""

    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], reducer: CrossStepReducer | None
    ) -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()
        if reducer is not None:
            assert reducer.barrier_reason == ""
            assert "step" in vars(optimizer)

    compare(2, train)


def test_gradients_accumulate_over_backward_passes() -> None:
    """Inside no_sync(), and without it, where every pass exchanges the sum so far."""

    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], reducer: CrossStepReducer | None
    ) -> None:
        for step in range(6):
            optimizer.zero_grad()
            for micro in range(3):
                loss = loss_of(model, rows(batch(10 * step + micro)))
                if reducer is not None and micro < 2 and step % 2:
                    with reducer.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()

    for crosses_steps in (True, False):
        compare(2, train, crosses_steps=crosses_steps)
        compare(2, train, crosses_steps=crosses_steps, **FIXED_ORDER)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("crosses_steps", [True, False])
def test_gradients_may_be_zeroed_anywhere(set_to_none: bool, crosses_steps: bool) -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(6):
            loss = loss_of(model, rows(batch(step)))
            optimizer.zero_grad(set_to_none=set_to_none)
            model.zero_grad(set_to_none=set_to_none)
            loss.backward()
            optimizer.step()
            model.zero_grad(set_to_none=set_to_none)

    compare(2, train, crosses_steps=crosses_steps)
    compare(2, train, crosses_steps=crosses_steps, **FIXED_ORDER)


@pytest.mark.parametrize("crosses_steps", [True, False])
def test_discarded_gradients_are_not_applied(crosses_steps: bool) -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(6):
            loss_of(model, rows(batch(100 + step))).backward()
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()
            optimizer.zero_grad()

    compare(2, train, crosses_steps=crosses_steps)


def test_clipping_needs_all_gradients() -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    assert all("between backward() and step()" in reducer.barrier_reason for reducer in compare(2, train))


def test_loss_scaling_needs_all_gradients() -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, rows(batch(step)))).backward()
            scaler.step(optimizer)
            scaler.update()

    assert all("between backward() and step()" in reducer.barrier_reason for reducer in compare(2, train))


def test_clipping_that_begins_later_is_noticed_when_it_begins() -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            if step == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    assert all("between backward() and step()" in reducer.barrier_reason for reducer in compare(2, train))


def test_an_optimizer_not_known_to_update_each_parameter_alone_does_not_overlap() -> None:
    class OwnSgd(torch.optim.SGD):
        pass

    OPTIMIZERS["own"] = lambda p: OwnSgd(p, lr=0.1)
    OPTIMIZERS["lbfgs"] = lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)

    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(3):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, rows(batch(step)))
                loss.backward()
                return loss

            if isinstance(optimizer, OwnSgd):
                closure()
                optimizer.step()

    try:
        reducers = compare(2, train, optimizer_name="own")
        assert all("OwnSgd is not known" in reducer.barrier_reason for reducer in reducers)
        (reducer,) = compare(1, train, optimizer_name="lbfgs")
        assert "LBFGS is not known" in reducer.barrier_reason
    finally:
        del OPTIMIZERS["own"], OPTIMIZERS["lbfgs"]


def test_training_goes_on_from_a_checkpoint() -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        kept: Any = None
        for step in (0, 1, 2, 3, 2, 3, 4):
            if step == 2:
                if kept is None:
                    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                else:
                    model.load_state_dict(kept[0])
                    optimizer.load_state_dict(kept[1])
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()

    compare(2, train)


def test_evaluation_between_steps_reads_updated_parameters() -> None:
    """Evaluation between steps runs the same hooks."""
    seen: dict[bool, list[float]] = {True: [], False: []}

    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], reducer: CrossStepReducer | None
    ) -> None:
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            with torch.no_grad():
                loss_of(model, batch(99))
            optimizer.step()
            with torch.no_grad():
                seen[reducer is None].append(float(loss_of(model, batch(99))))

    compare(2, train)
    assert seen[False][0::2] == pytest.approx(seen[True], rel=1e-9) or seen[False][:5] == pytest.approx(
        seen[True], rel=1e-9
    )


def plain_steps(
    model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], reducer: CrossStepReducer | None
) -> None:
    for step in range(6):
        for micro in range(2):
            loss = loss_of(model, rows(batch(10 * step + micro)))
            with reducer.no_sync() if reducer is not None and micro == 0 else nullcontext():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("crosses_steps", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sufficient_factors_make_up_the_gradient(size: int, crosses_steps: bool) -> None:
    """Also of uneven batches, and of two backward passes."""
    compare(size, plain_steps, factors=("0", "4"), crosses_steps=crosses_steps)


def test_sufficient_factors_of_a_shared_weight_are_refused() -> None:
    with pytest.raises(SpecError, match="embed"):
        compare(1, plain_steps, name="tied", factors=("embed",))
    with pytest.raises(SpecError, match="must be a Linear layer"):
        compare(1, plain_steps, name="tied", factors=("norm",))


def test_a_layer_that_sent_sufficient_factors_is_a_plain_one_again() -> None:
    (reducer,) = compare(1, plain_steps, factors=("0",))
    assert all("forward" not in vars(module) for module in reducer.model.modules())


@pytest.mark.parametrize("shares", [(0.0, 1.0, 0.0), (0.2, 0.3, 0.5)])
def test_owner_shards_and_servers_give_the_same_sum(shares: tuple[float, ...]) -> None:
    plain = model_of("mlp")
    plain_steps(plain, OPTIMIZERS["adam"](plain.parameters()), lambda x: x, None)

    def run(group: dist.ProcessGroup) -> float:
        shards = ShardGroup(group, shares, chunk_bytes=64)
        model = model_of("mlp")
        optimizer = OPTIMIZERS["adam"](model.parameters())
        reducer = reducer_of(model, optimizer, shards)
        plain_steps(model, optimizer, lambda x: own_rows(x, group), reducer)
        reducer.detach()
        shards.close().join()
        return distance(model, plain)

    assert all(found <= 1e-10 for found in on_ranks(3, run))


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "topk", "powersgd"])
def test_lossy_codecs_train_all_ranks_alike(codec: str) -> None:
    """Not to the plain parameters, but every rank to the same ones, and not far from those."""
    plain = model_of("mlp")
    plain_steps(plain, OPTIMIZERS["sgd"](plain.parameters()), lambda x: x, None)

    def run(group: dist.ProcessGroup) -> nn.Module:
        model = model_of("mlp")
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        reducer = reducer_of(model, optimizer, group, codec=codec, top_share=0.2)
        plain_steps(model, optimizer, lambda x: own_rows(x, group), reducer)
        reducer.detach()
        return model

    first, *others = on_ranks(3, run)
    assert all(distance(other, first) == 0.0 for other in others)
    assert 0.0 < distance(first, plain) < 0.05


def test_a_parameter_that_only_one_rank_uses() -> None:
    """What a rank did not use counts as zero there; what no rank used keeps its value, also under weight decay."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.never = (nn.Linear(5, 5) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.left(row) if row[0] > 0 else self.right(row) for row in x])

    MODELS["branches"] = Branches

    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(6):
            x = batch(step)
            x[:, 0] = x[:, 0].abs() * torch.tensor([1, 1, 1, 1, -1, -1])  # rank 0's rows go left, rank 1's right
            optimizer.zero_grad()
            loss_of(model, rows(x)).backward()
            optimizer.step()

    try:
        for crosses_steps in (True, False):
            compare(2, train, name="branches", crosses_steps=crosses_steps)
            compare(2, train, name="branches", crosses_steps=crosses_steps, **FIXED_ORDER)
    finally:
        del MODELS["branches"]


@pytest.mark.parametrize("priority", ["layer", "fifo"])
@pytest.mark.parametrize(("partition_bytes", "credit_bytes"), [(1, 1), (40, 10**9), (10**9, 10**9)])
def test_any_cut_and_credit(partition_bytes: int, credit_bytes: int, priority: str) -> None:
    def train(
        model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: CrossStepReducer | None
    ) -> None:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()

    compare(2, train, partition_bytes=partition_bytes, credit_bytes=credit_bytes, priority=priority)
