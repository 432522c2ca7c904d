"""Scheduled training equals plain training, whatever the optimizer, the model, the cuts and the order."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.comm.engine import Engine
from autotune.runtime.comm.exchange import Setting
from autotune.runtime.shard_group import ShardGroup
from autotune.runtime.traced_group import TracedGroup
from autotune.runtime.wrapped_group import WrappedGroup
from tests.gloo_ranks import on_ranks
from workloads.errors import SpecError
from workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan

IN_TURN = {"priority": "fifo", "credit_bytes": 10**9}
"""With this nobody asks for grants."""
SAMPLES = {1: (6,), 2: (4, 2), 3: (3, 1, 2)}
BATCH = 6


class Tied(nn.Module):
    """Tied weights, attention whose out_proj is never called, a frozen and an unused parameter, parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8, bias=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)[:, None, :].expand(-1, 3, -1)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.norm(self.frozen(h).mean(1) * self.scale)
        return nn.functional.linear(h, self.embed.weight.t())  # tied


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "tied": Tied}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


DRAWING = threading.Lock()


def model_of(name: str) -> nn.Module:
    """Ranks are threads here, and share torch's generator."""
    with DRAWING:
        torch.manual_seed(0)
        return MODELS[name]().double()


def batch(step: int) -> Tensor:
    return torch.randn(BATCH, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.flip(1)).square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups with options of their own."""
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 0.02, "weight_decay": 0.0},
    ]


def train_plainly(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
        scheduler.step()


def own_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    samples = SAMPLES[group.size()]
    start = sum(samples[: group.rank()])
    return x[start : start + samples[group.rank()]]


def plan_of(num_ranks: int, **comm: Any) -> Plan:
    comm = {"partition_bytes": 300, "credit_bytes": 700, "crosses_steps": True} | comm
    compression = {name: comm.pop(name) for name in ("codec", "factors", "top_share") if name in comm}
    return Plan(
        batch=BatchPlan(samples=SAMPLES[num_ranks]),
        comm=CommPlan(reducer="scheduled", **comm),
        compression=CompressionPlan(**compression),
    )


def engine_of(model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup, **comm: Any) -> Engine:
    setting = Setting(weight=SAMPLES[group.size()][group.rank()] / BATCH, timeout_s=15.0)
    return Engine(model, optimizer, plan_of(group.size(), **comm), group, setting)


def distance(a: nn.Module, b: nn.Module) -> float:
    """Relative, of all parameters together."""
    ours, theirs = (torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in (a, b))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [t for t in threading.enumerate() if t not in before and t.name.startswith("autotune")] == []


@pytest.mark.parametrize("crosses_steps", [True, False])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1, 3])
def test_parameters_are_those_of_plain_training(size: int, name: str, optimizer_name: str, crosses_steps: bool) -> None:
    plain = model_of(name)
    plain_optimizer = OPTIMIZERS[optimizer_name](groups_of(plain))
    train_plainly(plain, plain_optimizer, 12)

    def run(group: dist.ProcessGroup) -> tuple[float, bool]:
        model = model_of(name)
        optimizer = OPTIMIZERS[optimizer_name](groups_of(model))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        engine = engine_of(model, optimizer, group, crosses_steps=crosses_steps)
        for step in range(12):
            loss = loss_of(model, own_rows(batch(step), group))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        state, model_state = optimizer.state_dict(), model.state_dict()
        engine.detach()
        same_keys = _shape_of(state) == _shape_of(plain_optimizer.state_dict())
        return distance(model, plain), same_keys and list(model_state) == list(plain.state_dict())

    for found in on_ranks(size, run):
        assert not isinstance(found, Exception), found
        assert found[0] <= 1e-10
        assert found[1]


def _shape_of(state: dict[str, Any]) -> Any:
    states = {key: sorted(entry) for key, entry in state["state"].items()}
    return states, [{k: v for k, v in group.items() if k != "lr"} for group in state["param_groups"]]


def compare(
    size: int,
    train: Callable[[nn.Module, Optimizer, Callable[[Tensor], Tensor], Engine | None], None],
    *,
    name: str = "mlp",
    optimizer_name: str = "adamw",
    **comm: Any,
) -> list[Engine]:
    """`train` with an engine on each rank leaves the parameters that it leaves without; the ranks' engines."""
    plain = model_of(name)
    train(plain, OPTIMIZERS[optimizer_name](plain.parameters()), lambda x: x, None)

    def run(group: dist.ProcessGroup) -> Engine:
        model = model_of(name)
        optimizer = OPTIMIZERS[optimizer_name](model.parameters())
        engine = engine_of(model, optimizer, group, **comm)
        try:
            train(model, optimizer, lambda x: own_rows(x, group), engine)
        except Exception as error:
            engine.detach(error)
            raise
        engine.detach()
        assert distance(model, plain) <= 1e-10
        return engine

    engines = on_ranks(size, run)
    for engine in engines:
        if isinstance(engine, Exception):
            raise engine
    return engines


def test_steps_really_cross() -> None:
    """After the first, `step()` returns while gradients are under way: here until another rank has them."""

    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], engine: Engine | None) -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()
        if engine is not None:
            assert engine.barrier_reason == ""
            assert "step" in vars(optimizer)

    compare(2, train)


def test_gradients_accumulate_over_backward_passes() -> None:
    """Inside no_sync(), and without it, where every pass exchanges what all have left so far."""

    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], engine: Engine | None) -> None:
        for step in range(6):
            optimizer.zero_grad()
            for micro in range(3):
                loss = loss_of(model, rows(batch(10 * step + micro)))
                if engine is not None and micro < 2 and step % 2:
                    with engine.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()

    for crosses_steps in (True, False):
        compare(2, train, crosses_steps=crosses_steps)
        compare(2, train, crosses_steps=crosses_steps, **IN_TURN)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("crosses_steps", [True, False])
def test_gradients_may_be_zeroed_anywhere(set_to_none: bool, crosses_steps: bool) -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(6):
            loss = loss_of(model, rows(batch(step)))
            optimizer.zero_grad(set_to_none=set_to_none)
            model.zero_grad(set_to_none=set_to_none)
            loss.backward()
            optimizer.step()
            model.zero_grad(set_to_none=set_to_none)

    compare(2, train, crosses_steps=crosses_steps)
    compare(2, train, crosses_steps=crosses_steps, **IN_TURN)


@pytest.mark.parametrize("crosses_steps", [True, False])
def test_gradients_thrown_away_are_gone(crosses_steps: bool) -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(6):
            loss_of(model, rows(batch(100 + step))).backward()
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()
            optimizer.zero_grad()

    compare(2, train, crosses_steps=crosses_steps)


def test_clipping_needs_all_gradients() -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    assert all("between backward and step()" in engine.barrier_reason for engine in compare(2, train))


def test_loss_scaling_needs_all_gradients() -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, rows(batch(step)))).backward()
            scaler.step(optimizer)
            scaler.update()

    assert all("between backward and step()" in engine.barrier_reason for engine in compare(2, train))


def test_clipping_that_begins_later_is_refused() -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            if step == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    with pytest.raises(RuntimeError, match="set crosses_steps to false"):
        compare(1, train)


def test_what_is_not_known_to_update_each_parameter_alone_does_not_cross() -> None:
    class Mine(torch.optim.SGD):
        pass

    OPTIMIZERS["mine"] = lambda p: Mine(p, lr=0.1)
    OPTIMIZERS["lbfgs"] = lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)

    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(3):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, rows(batch(step)))
                loss.backward()
                return loss

            if isinstance(optimizer, Mine):
                closure()
                optimizer.step()

    try:
        engines = compare(2, train, optimizer_name="mine")
        assert all("Mine is not known" in engine.barrier_reason for engine in engines)
        (engine,) = compare(1, train, optimizer_name="lbfgs")
        assert "LBFGS is not known" in engine.barrier_reason
    finally:
        del OPTIMIZERS["mine"], OPTIMIZERS["lbfgs"]


def test_training_goes_on_from_a_checkpoint() -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
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


def test_a_look_at_the_model_sees_it_up_to_date() -> None:
    """Evaluation between steps runs the same hooks."""
    seen: dict[bool, list[float]] = {True: [], False: []}

    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], engine: Engine | None) -> None:
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            with torch.no_grad():
                loss_of(model, batch(99))
            optimizer.step()
            with torch.no_grad():
                seen[engine is None].append(float(loss_of(model, batch(99))))

    compare(2, train)
    assert seen[False][0::2] == pytest.approx(seen[True], rel=1e-9) or seen[False][:5] == pytest.approx(
        seen[True], rel=1e-9
    )


def plain_steps(
    model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], engine: Engine | None
) -> None:
    for step in range(6):
        for micro in range(2):
            loss = loss_of(model, rows(batch(10 * step + micro)))
            with engine.no_sync() if engine is not None and micro == 0 else nullcontext():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("crosses_steps", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_factors_make_up_the_gradient(size: int, crosses_steps: bool) -> None:
    """Also of uneven batches, and of two backward passes."""
    compare(size, plain_steps, factors=("0", "4"), crosses_steps=crosses_steps)


def test_factors_of_a_weight_that_is_used_elsewhere_too_are_refused() -> None:
    with pytest.raises(SpecError, match="embed"):
        compare(1, plain_steps, name="tied", factors=("embed",))
    with pytest.raises(SpecError, match="must be a Linear layer"):
        compare(1, plain_steps, name="tied", factors=("norm",))


def test_a_layer_that_sent_factors_is_a_plain_one_again() -> None:
    (engine,) = compare(1, plain_steps, factors=("0",))
    assert all("forward" not in vars(module) for module in engine.model.modules())


@pytest.mark.parametrize("shares", [(0.0, 1.0, 0.0), (0.2, 0.3, 0.5)])
def test_shards_and_servers_give_the_same_sum(shares: tuple[float, ...]) -> None:
    plain = model_of("mlp")
    plain_steps(plain, OPTIMIZERS["adam"](plain.parameters()), lambda x: x, None)

    def run(group: dist.ProcessGroup) -> float:
        shards = ShardGroup(group, shares, chunk_bytes=64)
        model = model_of("mlp")
        optimizer = OPTIMIZERS["adam"](model.parameters())
        engine = engine_of(model, optimizer, shards)
        plain_steps(model, optimizer, lambda x: own_rows(x, group), engine)
        engine.detach()
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
        engine = engine_of(model, optimizer, group, codec=codec, top_share=0.2)
        plain_steps(model, optimizer, lambda x: own_rows(x, group), engine)
        engine.detach()
        return model

    first, *others = on_ranks(3, run)
    assert all(distance(other, first) == 0.0 for other in others)
    assert 0.0 < distance(first, plain) < 0.05


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


def test_a_weight_that_was_read_too_early_is_not_passed_over() -> None:
    """Its value changes between the forward and the backward pass, which autograd does not let pass."""

    def run(group: dist.ProcessGroup) -> str:
        model = Detour().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = engine_of(model, optimizer, Slow(group), partition_bytes=200, credit_bytes=1)
        try:
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, batch(step)).backward()
                optimizer.step()
        except RuntimeError as error:
            engine.detach(error)
            return str(error)
        engine.detach()
        return ""

    (message,) = on_ranks(1, run)
    assert "modified by an inplace operation" in message


def test_the_next_step_begins_before_the_last_gradients_have_arrived() -> None:
    """Three exchanges of 50 ms each, one after the other: the first layer runs when its own has landed."""

    def run(group: dist.ProcessGroup) -> list[float]:
        model = Detour().double()
        model.num_calls = -100  # no detours
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = engine_of(model, optimizer, Slow(group), partition_bytes=200, credit_bytes=1)
        reached: dict[str, float] = {}
        for name, module in model.named_children():
            module.register_forward_hook(lambda *_, name=name: reached.update({name: time.monotonic()}))
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        engine.detach()
        return [reached[name] for name in ("first", "second", "third")]

    ((first, second, third),) = on_ranks(1, run)
    assert second - first > 0.03
    assert third - second < 0.03  # its own exchange went first, before the others were ready


def test_waiting_between_steps_is_no_wait_of_a_forward_pass() -> None:
    """A step's computing is told apart from its waiting by it."""

    def run(group: dist.ProcessGroup) -> tuple[float, float, float]:
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = engine_of(model, optimizer, Slow(group), partition_bytes=200, credit_bytes=1)
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
        engine.sent()
        begun_s = time.monotonic()
        engine.settle()
        settled_s = time.monotonic() - begun_s
        between_s = engine.sent().stalled_s
        loss_of(model, batch(3)).backward()
        optimizer.step()
        model(batch(4))
        stalled_s = engine.sent().stalled_s
        engine.detach()
        return settled_s, between_s, stalled_s

    ((settled_s, between_s, stalled_s),) = on_ranks(1, run)
    assert settled_s > 0.03
    assert between_s == 0
    assert stalled_s > 0.03


def test_asking_what_was_sent_waits_for_nothing() -> None:
    """A group that notes what it carries waits for all of it when asked, which no step may that crosses."""

    def run(group: dist.ProcessGroup) -> float:
        traced = TracedGroup(Slow(group))
        traced.recording = True
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = engine_of(model, optimizer, traced, partition_bytes=200, credit_bytes=1)
        for step in range(3):
            loss_of(model, batch(step)).backward()
            optimizer.step()
        begun_s = time.monotonic()
        engine.sent()
        taken_s = time.monotonic() - begun_s
        engine.detach()
        return taken_s

    (taken_s,) = on_ranks(1, run)
    assert taken_s < 0.03


def test_a_parameter_that_only_one_rank_uses() -> None:
    """What a rank did not use counts as zero there; what nobody used keeps its value, also under weight decay."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.never = (nn.Linear(5, 5) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.left(row) if row[0] > 0 else self.right(row) for row in x])

    MODELS["branches"] = Branches

    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(6):
            x = batch(step)
            x[:, 0] = x[:, 0].abs() * torch.tensor([1, 1, 1, 1, -1, -1])  # rank 0's rows go left, rank 1's right
            optimizer.zero_grad()
            loss_of(model, rows(x)).backward()
            optimizer.step()

    try:
        for crosses_steps in (True, False):
            compare(2, train, name="branches", crosses_steps=crosses_steps)
            compare(2, train, name="branches", crosses_steps=crosses_steps, **IN_TURN)
    finally:
        del MODELS["branches"]


@pytest.mark.parametrize("priority", ["layer", "fifo"])
@pytest.mark.parametrize(("partition_bytes", "credit_bytes"), [(1, 1), (40, 10**9), (10**9, 10**9)])
def test_any_cut_and_credit(partition_bytes: int, credit_bytes: int, priority: str) -> None:
    def train(model: nn.Module, optimizer: Optimizer, rows: Callable[[Tensor], Tensor], _: Engine | None) -> None:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, rows(batch(step))).backward()
            optimizer.step()

    compare(2, train, partition_bytes=partition_bytes, credit_bytes=credit_bytes, priority=priority)


@pytest.mark.parametrize(
    "comm", [{}, IN_TURN, IN_TURN | {"crosses_steps": False}], ids=["granted", "in turn", "in turn, behind a barrier"]
)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("at", ["forward", "backward"])
def test_a_rank_that_fails_in_a_step_takes_the_others_out_of_it(failing: int, at: str, comm: dict[str, Any]) -> None:
    def run(group: dist.ProcessGroup) -> Exception | None:
        model = model_of("mlp")
        optimizer = OPTIMIZERS["adam"](model.parameters())
        engine = engine_of(model, optimizer, group, **comm)

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
            engine.detach(error)
            return error.with_traceback(None)  # it holds this frame, which holds the group
        engine.detach()
        return None

    errors = on_ranks(3, run)
    assert isinstance(errors[failing], ValueError)
    others = [error for rank, error in enumerate(errors) if rank != failing]
    assert all("out of luck" in str(error) for error in others), errors
