"""Counting a model's costs: FLOPs as torch counts them, bytes by closed form, parameters once, saved activations exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autotune.workloads.capture import LOSS, MODEL, SavedTensorMeter, capture
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.registry import load_workload
from autotune.workloads.serial import digest
from autotune.workloads.workload import Workload

FLOAT = 4


def graph_of(model: nn.Module, make_input: Callable[[int], Tensor]) -> OpGraph:
    return capture(model, lambda count: model(make_input(count)).square().mean())


def flops_by_torch(model: nn.Module, inputs: Tensor) -> int:
    """Forward and backward, as torch's own counter sees them."""
    with FlopCounterMode(display=False) as counter:
        model(inputs).square().mean().backward()
    return int(counter.get_total_flops())


def op(graph: OpGraph, name: str) -> Op:
    return next(op for op in graph.ops if op.name == name)


def names(graph: OpGraph) -> list[str]:
    return [op.name for op in graph.ops]


def trainable_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7, bias=False), nn.ReLU(), nn.Linear(7, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 10),
    )


def flat(count: int) -> Tensor:
    return torch.randn(count, 12)


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 14, 14)


# --- FLOPs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "make_input"), [(mlp, flat), (conv_net, images)], ids=["mlp", "conv net"])
@pytest.mark.parametrize("batch", [1, 8])
def test_flops_of_forward_and_backward_equal_torchs_own_count(
    build: Callable[[], nn.Module], make_input: Callable[[int], Tensor], batch: int
) -> None:
    model = build()
    graph = graph_of(model, make_input)
    assert graph.flops_per_sample * batch == flops_by_torch(model, make_input(batch))


def test_flops_of_a_partly_frozen_net_equal_torchs_own_count() -> None:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    model[2].requires_grad_(requires_grad=False)
    assert graph_of(model, flat).flops_per_sample * 8 == flops_by_torch(model, flat(8))


def test_the_first_layer_pays_only_for_the_gradient_of_its_weights() -> None:
    graph = graph_of(mlp(), flat)
    assert [op(graph, name).backward_factor for name in ("0", "2", "4")] == [1.0, 2.0, 2.0]


def test_the_flops_of_a_linear_layer_are_two_per_weight() -> None:
    graph = graph_of(mlp(), flat)
    assert [op(graph, name).flops_per_sample for name in ("0", "2", "4")] == [2 * 12 * 20, 2 * 20 * 7, 2 * 7 * 3]


class Attention(nn.Module):
    """Two heads of width 8 over 6 tokens, projections included."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(16, 48)
        self.outputs = nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.inputs(tokens).view(len(tokens), 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.outputs(mixed.transpose(1, 2).reshape(len(tokens), 6, 16))


def tokens(count: int) -> Tensor:
    return torch.randn(count, 6, 16)


ATTENTION_FLOPS = 2 * (2 * 6 * 6 * 8) * 2
"""Two heads; scores and mixing are each a 6x8 by 8x6 product of two FLOPs per multiply-add."""


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_counts_for_the_module_that_calls_it_whichever_kernel_runs(backend: SDPBackend) -> None:
    model = nn.Sequential(nn.Linear(16, 16), Attention())
    with sdpa_kernel(backend):
        graph = graph_of(model, tokens)
    assert op(graph, "1").flops_per_sample == ATTENTION_FLOPS
    assert op(graph, "1").backward_factor == 2.0


def test_flops_of_attention_equal_torchs_own_count() -> None:
    model = nn.Sequential(nn.Linear(16, 16), Attention())
    with sdpa_kernel(SDPBackend.MATH):
        assert graph_of(model, tokens).flops_per_sample * 4 == flops_by_torch(model, tokens(4))


def test_what_the_model_itself_does_with_its_childrens_outputs_is_paid_for_in_backward() -> None:
    """The model's own input needs no gradient, but the projections that attention works on do."""
    model = Attention()
    with sdpa_kernel(SDPBackend.MATH):
        assert graph_of(model, tokens).flops_per_sample * 4 == flops_by_torch(model, tokens(4))


# --- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "make_input"), [(mlp, flat), (conv_net, images)], ids=["mlp", "conv net"])
def test_parameter_bytes_are_those_of_the_model(
    build: Callable[[], nn.Module], make_input: Callable[[int], Tensor]
) -> None:
    model = build()
    assert graph_of(model, make_input).param_bytes == trainable_bytes(model)


def test_frozen_parameters_are_not_counted() -> None:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    assert graph_of(model, flat).param_bytes == trainable_bytes(model) == (20 * 7 + 7 * 3 + 3) * FLOAT


class Tied(nn.Module):
    """The table that reads words also writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(10, 6)
        self.middle = nn.Linear(6, 6)
        self.write = nn.Linear(6, 10, bias=False)
        self.write.weight = self.read.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.write(self.middle(self.read(words)))


def test_tied_weights_are_counted_once_for_the_module_that_has_them_first() -> None:
    model = Tied()
    graph = graph_of(model, lambda count: torch.zeros(count, 5, dtype=torch.long))
    assert graph.param_bytes == trainable_bytes(model) == (60 + 36 + 6) * FLOAT
    assert op(graph, "read").param_bytes == 60 * FLOAT
    assert op(graph, "write").param_bytes == 0


def test_a_module_used_twice_is_one_op_with_two_calls() -> None:
    shared = nn.Linear(12, 12)
    graph = graph_of(nn.Sequential(shared, nn.ReLU(), shared), flat)
    assert [name for name in names(graph) if name == "0"] == ["0"]
    assert op(graph, "0").num_calls == 2
    assert op(graph, "0").flops_per_sample == 2 * (2 * 12 * 12)
    assert graph.param_bytes == (12 * 12 + 12) * FLOAT


class Scaled(nn.Module):
    """Owns a parameter and a child: not a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12, 12))
        self.child = nn.Linear(12, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.child(inputs) @ self.scale


def test_a_module_that_owns_parameters_beside_children_is_an_op_of_its_own() -> None:
    model = nn.Sequential(Scaled(), nn.Linear(12, 3))
    graph = graph_of(model, flat)
    assert op(graph, "0").param_bytes == 12 * 12 * FLOAT
    assert op(graph, "0").flops_per_sample == 2 * 12 * 12
    assert op(graph, "0.child").param_bytes == (12 * 12 + 12) * FLOAT
    assert graph.param_bytes == trainable_bytes(model)


def test_a_module_that_owns_parameters_beside_children_pays_for_the_gradient_it_hands_to_them() -> None:
    model = nn.Sequential(Scaled(), nn.Linear(12, 3))
    assert graph_of(model, flat).flops_per_sample * 4 == flops_by_torch(model, flat(4))


class Attentive(nn.Module):
    """torch's own attention: its output projection is a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.attention(words, words, words)[0]


def test_the_parameters_of_a_module_that_is_never_called_are_counted_too() -> None:
    model = Attentive()
    assert graph_of(model, tokens).param_bytes == trainable_bytes(model)


def test_the_projection_of_torchs_attention_belongs_to_the_attention() -> None:
    graph = graph_of(Attentive(), tokens)
    assert {parameter.name: parameter.op for parameter in graph.parameters} == {
        "attention.in_proj_weight": "attention",
        "attention.in_proj_bias": "attention",
        "attention.out_proj.weight": "attention",
        "attention.out_proj.bias": "attention",
    }


def test_parameters_are_listed_as_the_model_names_them_each_with_its_op() -> None:
    model = nn.Sequential(Scaled(), nn.Linear(12, 3))
    model[0].child.bias.requires_grad_(requires_grad=False)
    assert graph_of(model, flat).parameters == (
        Parameter(name="0.scale", op="0", num_bytes=144 * FLOAT, shape=(12, 12), kind="Scaled"),
        Parameter(name="0.child.weight", op="0.child", num_bytes=144 * FLOAT, shape=(12, 12), kind="Linear"),
        Parameter(name="1.weight", op="1", num_bytes=36 * FLOAT, shape=(3, 12), kind="Linear"),
        Parameter(name="1.bias", op="1", num_bytes=3 * FLOAT, shape=(3,), kind="Linear"),
    )


def test_tied_and_shared_parameters_are_listed_once() -> None:
    words = graph_of(Tied(), lambda count: torch.zeros(count, 5, dtype=torch.long))
    assert [(p.name, p.op) for p in words.parameters] == [
        ("read.weight", "read"),
        ("middle.weight", "middle"),
        ("middle.bias", "middle"),
    ]
    shared = nn.Linear(12, 12)
    twice = graph_of(nn.Sequential(shared, nn.ReLU(), shared), flat)
    assert [(p.name, p.op) for p in twice.parameters] == [("0.weight", "0"), ("0.bias", "0")]


def test_what_a_model_owns_itself_is_the_losss_where_the_loss_only_calls_its_children() -> None:
    model = Scaled()
    graph = capture(model, lambda count: (model.child(flat(count)) @ model.scale).square().mean())
    assert names(graph) == ["child", LOSS]
    assert graph.param_bytes == trainable_bytes(model)
    assert op(graph, LOSS).param_bytes == 144 * FLOAT


# --- shipped workloads -------------------------------------------------------------------------------------------------

SPECS = [*(f"{model}-{size}" for model in ("mlp", "vgg", "resnet", "gpt") for size in ("tiny", "small")), "digits"]


def loss_of(workload: Workload, model: nn.Module) -> Callable[[int], Tensor]:
    data = workload.dataset()
    return lambda count: workload.loss(model, data[torch.arange(count)])


def held_bytes(model: nn.Module, run: Callable[[int], Tensor], count: int) -> int:
    """By a meter that knows nothing of ops."""
    meter = SavedTensorMeter(model)
    with meter.watch():
        loss = run(count)
    held = meter.current_bytes
    del loss
    return held


@pytest.mark.parametrize("spec", SPECS)
def test_the_ops_of_a_workload_share_out_its_parameters_and_activations(spec: str) -> None:
    workload = load_workload(spec)
    model = workload.model()
    run = loss_of(workload, model)
    graph = capture(model, run)
    assert [p.name for p in graph.parameters] == [name for name, _ in model.named_parameters()]
    owned = Counter[str]()
    for parameter in graph.parameters:
        owned[parameter.op] += parameter.num_bytes
    assert {op.name: op.param_bytes for op in graph.ops} == {op.name: owned[op.name] for op in graph.ops}
    assert graph.param_bytes == sum(owned.values()) == trainable_bytes(model)
    saved = (held_bytes(model, run, 6) - held_bytes(model, run, 3)) / 3
    assert sum(op.saved_bytes_per_sample for op in graph.ops) == graph.saved_bytes_per_sample == pytest.approx(saved)


# --- bytes -------------------------------------------------------------------------------------------------------------


def test_bytes_moved_are_inputs_weights_and_outputs() -> None:
    """A Linear reads 12 floats and writes 20 per sample, and reads its 12x20 weights and 20 biases whatever the batch."""
    first = op(graph_of(mlp(), flat), "0")
    assert first.bytes_per_sample == (12 + 20) * FLOAT
    assert first.fixed_bytes == (12 * 20 + 20) * FLOAT


def test_a_view_moves_nothing() -> None:
    graph = graph_of(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), lambda count: torch.randn(count, 3, 4))
    assert (op(graph, "0").bytes_per_sample, op(graph, "0").fixed_bytes) == (0.0, 0.0)


def test_ops_are_in_the_order_they_ran_and_the_loss_is_last() -> None:
    assert names(graph_of(mlp(), flat)) == ["0", "1", "2", "3", "4", "(model)", LOSS]


def test_output_bytes_are_those_of_what_the_module_returns() -> None:
    graph = graph_of(mlp(), flat)
    outputs = {op.name: op.output_bytes_per_sample for op in graph.ops}
    assert outputs == {
        "0": 20 * FLOAT,
        "1": 20 * FLOAT,
        "2": 7 * FLOAT,
        "3": 7 * FLOAT,
        "4": 3 * FLOAT,
        MODEL: 3 * FLOAT,
        LOSS: 0.0,
    }


def test_several_outputs_are_summed_and_calls_as_well() -> None:
    weights = 6 * 6
    assert op(graph_of(Attentive(), tokens), "attention").output_bytes_per_sample == (6 * 16 + weights) * FLOAT
    shared = nn.Linear(12, 12)
    twice = graph_of(nn.Sequential(shared, nn.ReLU(), shared), flat)
    assert op(twice, "0").output_bytes_per_sample == 2 * 12 * FLOAT


def test_only_a_linear_layer_has_factors() -> None:
    graph = graph_of(conv_net(), images)
    assert {op.name: op.factor_shapes for op in graph.ops if op.factor_shapes} == {"7": ((10, 16 * 3 * 3),)}


def test_a_loss_that_is_a_module_of_its_own_is_counted_once() -> None:
    model, mean_square = mlp(), nn.MSELoss()
    graph = capture(model, lambda count: mean_square(model(flat(count)), torch.zeros(count, 3)))
    assert names(graph) == names(graph_of(model, flat))
    assert op(graph, LOSS).num_calls == 1


class Improvised(nn.Module):
    """Calls a module that it does not own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.foreign = [nn.Tanh()]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.foreign[0](self.inner(inputs))


def test_a_module_that_is_not_the_models_is_part_of_the_one_that_calls_it() -> None:
    graph = graph_of(nn.Sequential(Improvised()), flat)
    assert names(graph) == ["0.inner", "0", MODEL, LOSS]
    assert op(graph, "0").num_calls == 1
    assert op(graph, "0").output_bytes_per_sample == 12 * FLOAT
    assert op(graph, "0").bytes_per_sample == 2 * 12 * FLOAT


# --- saved activations -------------------------------------------------------------------------------------------------


def test_saved_bytes_per_sample_are_what_backward_needs() -> None:
    """x (12) for the first weights, the ReLU's output (20) for both it and the second weights, the last output (3)."""
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))
    graph = capture(model, lambda count: model(flat(count)).square().mean())
    assert graph.saved_bytes_per_sample == (12 + 20 + 3) * FLOAT


def test_saved_bytes_do_not_include_parameters() -> None:
    wide = nn.Sequential(nn.Linear(12, 2000, bias=False), nn.Linear(2000, 1, bias=False))
    assert graph_of(wide, flat).saved_bytes_per_sample == (12 + 2000 + 1) * FLOAT


def test_a_frozen_net_saves_no_activations_for_weights() -> None:
    model = nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 3))
    model[0].requires_grad_(requires_grad=False)
    assert graph_of(model, flat).saved_bytes_per_sample == (20 + 3) * FLOAT


def test_saved_bytes_are_the_first_ops_that_kept_them() -> None:
    """The ReLU keeps its output, so the layer behind it, which needs the same tensor, keeps nothing more."""
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))
    graph = graph_of(model, flat)
    saved = {op.name: op.saved_bytes_per_sample for op in graph.ops}
    assert saved == {"0": 12 * FLOAT, "1": 20 * FLOAT, "2": 0.0, MODEL: 0.0, LOSS: 3 * FLOAT}


class Forgetful(nn.Module):
    """What the first layer kept is gone, and its memory free, when the second layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        self.first(inputs.exp())
        return self.second(inputs.sin())


def test_memory_that_is_used_again_counts_for_the_op_that_keeps_it_now() -> None:
    graph = graph_of(Forgetful(), flat)
    saved = {op.name: op.saved_bytes_per_sample for op in graph.ops}
    assert saved == {"first": 0.0, "second": 12 * FLOAT, MODEL: 0.0, LOSS: 12 * FLOAT}


def test_a_storage_is_its_first_holders_until_the_last_lets_go() -> None:
    running = ["a"]
    meter = SavedTensorMeter(nn.Identity(), lambda: running[0])
    meter.hold(100, 8)
    running[0] = "b"
    meter.hold(100, 8)
    meter.release(100, 8)
    assert +meter.bytes_by_op == {"a": 8}
    meter.release(100, 8)
    assert not +meter.bytes_by_op
    meter.hold(100, 16)
    assert +meter.bytes_by_op == {"b": 16}
    assert meter.current_bytes == 16


# --- the model is left alone -------------------------------------------------------------------------------------------


def test_capturing_leaves_no_gradients_no_hooks_and_the_same_weights() -> None:
    model = conv_net()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    graph_of(model, images)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_model_that_raises_leaves_no_hooks_behind() -> None:
    model = mlp()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        graph_of(model, lambda count: torch.randn(count, 5))
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_the_fingerprint_is_stable_and_changes_with_the_structure() -> None:
    assert graph_of(mlp(), flat).fingerprint() == graph_of(mlp(), flat).fingerprint()
    wider = nn.Sequential(nn.Linear(12, 21), nn.ReLU(), nn.Linear(21, 7, bias=False), nn.ReLU(), nn.Linear(7, 3))
    assert graph_of(wider, flat).fingerprint() != graph_of(mlp(), flat).fingerprint()


def test_the_fingerprint_does_not_change_with_the_edges() -> None:
    graph = graph_of(mlp(), flat)
    edge = Edge(source="0", target="1", bytes_per_sample=80.0)
    assert replace(graph, edges=(edge,), edges_from="fx", edges_note="why").fingerprint() == graph.fingerprint()


def test_the_fingerprint_is_what_it_was_when_plans_were_first_kept() -> None:
    """Kept plans are found by it: a graph without the later fields has the digest of its first fields."""
    graph = graph_of(mlp(), flat)
    first = ("name", "kind", "num_calls", "flops_per_sample", "fixed_bytes", "bytes_per_sample", "param_bytes")
    ops = [{key: getattr(op, key) for key in (*first, "backward_factor")} for op in graph.ops]
    assert graph.fingerprint() == digest({"ops": ops, "saved_bytes_per_sample": graph.saved_bytes_per_sample})
