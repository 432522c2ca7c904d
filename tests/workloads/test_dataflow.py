"""The edges of a model: explicit on small ones, by their sums and shapes on the shipped ones, with every method of finding them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from autotune.workloads.capture import LOSS, MODEL, capture
from autotune.workloads.dataflow import with_edges
from autotune.workloads.graph import OpGraph
from autotune.workloads.registry import load_workload

FLOAT = 4

Flows = dict[tuple[str, str], float]


def flat(count: int) -> Tensor:
    return torch.randn(count, 12)


def tokens(count: int) -> Tensor:
    return torch.randn(count, 6, 16)


def graph_of(model: nn.Module, make_input: Callable[[int], object] = flat) -> OpGraph:
    def run(count: int) -> Tensor:
        loss: Tensor = model(make_input(count)).square().mean()
        return loss

    return with_edges(capture(model, run), model, run)


def flows(graph: OpGraph) -> Flows:
    """Numbers per sample of each edge; no edge stands twice."""
    assert len({(edge.source, edge.target) for edge in graph.edges}) == len(graph.edges)
    return {(edge.source, edge.target): edge.bytes_per_sample / FLOAT for edge in graph.edges}


def chain(graph: OpGraph, *names: str) -> Flows:
    outputs = {op.name: op.output_bytes_per_sample / FLOAT for op in graph.ops}
    return {(source, target): outputs[source] for source, target in pairwise(names)}


# --- export ------------------------------------------------------------------------------------------------------------


def test_a_chain_of_layers_is_that_chain() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)))
    assert (graph.edges_from, graph.edges_note) == ("export", "")
    assert flows(graph) == {("0", "1"): 20, ("1", "2"): 20, ("2", LOSS): 3}


class TwoPaths(nn.Module):
    """A short and a long way from the stem to the head, added by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(12, 6)
        self.short = nn.Linear(6, 8)
        self.long = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        stem = self.stem(inputs)
        outputs: Tensor = self.head(self.short(stem) + self.long(stem))
        return outputs


TWO_PATHS = {
    ("stem", "short"): 6,
    ("stem", "long.0"): 6,
    ("long.0", "long.1"): 5,
    ("long.1", "long.2"): 5,
    ("short", MODEL): 8,
    ("long.2", MODEL): 8,
    (MODEL, "head"): 8,
    ("head", LOSS): 3,
}


def test_two_paths_part_and_meet() -> None:
    graph = graph_of(TwoPaths())
    assert graph.edges_from == "export"
    assert flows(graph) == TWO_PATHS


class Residual(nn.Module):
    """A block whose input goes round its branch."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 12))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs + self.branch(inputs)
        return outputs


def test_what_goes_round_a_branch_is_read_by_the_block_and_by_the_branch() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(12, 12), Residual()))
    assert flows(graph) == {
        ("0", "1.branch.0"): 12,
        ("1.branch.0", "1.branch.1"): 7,
        ("1.branch.1", "1.branch.2"): 7,
        ("0", "1"): 12,
        ("1.branch.2", "1"): 12,
        ("1", LOSS): 12,
    }


class Reuse(nn.Module):
    """Reads one tensor three times, and hands two halves of another to one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.second = nn.Bilinear(4, 4, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        left, right = (hidden * hidden + hidden).chunk(2, dim=1)
        outputs: Tensor = self.second(left, right)
        return outputs


def test_a_tensor_counts_once_for_each_reader_and_several_tensors_add_up() -> None:
    assert flows(graph_of(Reuse())) == {("first", MODEL): 8, (MODEL, "second"): 4 + 4, ("second", LOSS): 5}


def test_a_shared_module_reads_what_it_made_itself_by_way_of_others() -> None:
    shared = nn.Linear(12, 12)
    graph = graph_of(nn.Sequential(shared, nn.ReLU(), shared))
    assert graph.edges_from == "export"
    assert flows(graph) == {("0", "1"): 12, ("1", "0"): 12, ("0", LOSS): 12}


def test_a_module_shared_by_two_blocks_has_the_name_of_the_first() -> None:
    shared = nn.Linear(12, 12)
    graph = graph_of(nn.Sequential(nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared, nn.Tanh())))
    assert graph.edges_from == "export"
    assert flows(graph) == {("0.0", "0.1"): 12, ("0.1", "0.0"): 12, ("0.0", "1.1"): 12, ("1.1", LOSS): 12}


class Attentive(nn.Module):
    """torch's own attention; only the first of its two results is used."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        words = self.inputs(words)
        outputs: Tensor = self.attention(words, words, words)[0]
        return outputs


def test_attention_is_one_op_that_reads_its_queries_keys_and_values_once() -> None:
    graph = graph_of(Attentive(), tokens)
    assert graph.edges_from == "export"
    assert flows(graph) == {("inputs", "attention"): 6 * 16, ("attention", LOSS): 6 * 16}


class FrozenTrunk(nn.Module):
    """The trunk runs without gradients, which export makes a graph within the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 9), nn.ReLU())
        self.head = nn.Linear(9, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.trunk(inputs)
        outputs: Tensor = self.head(features)
        return outputs


def test_layers_that_run_without_gradients_are_seen_one_by_one() -> None:
    graph = graph_of(FrozenTrunk())
    assert graph.edges_from == "export"
    assert flows(graph) == {("trunk.0", "trunk.1"): 9, ("trunk.1", "head"): 9, ("head", LOSS): 3}


def test_layers_that_work_in_place_or_hand_on_what_they_get() -> None:
    model = nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(9, 3))
    assert flows(graph_of(model)) == {("0", "1"): 9, ("1", "2"): 9, ("2", "4"): 9, ("4", LOSS): 3}


class InPlace(nn.Module):
    """Changes a tensor behind the back of who made it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 9)
        self.second = nn.Linear(9, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        hidden.mul_(2)
        outputs: Tensor = self.second(hidden)
        return outputs


def test_a_tensor_changed_in_place_comes_from_who_changed_it() -> None:
    assert flows(graph_of(InPlace())) == {("first", MODEL): 9, (MODEL, "second"): 9, ("second", LOSS): 3}


def test_keywords_and_a_model_that_is_called_twice() -> None:
    """A siamese loss: what crosses in both calls is added up, as the ops' costs are."""

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(12, 5)
            self.second = nn.Linear(5, 2)

        def forward(self, inputs: Tensor, *, scale: float = 1.0) -> Tensor:
            outputs: Tensor = self.second(self.first(inputs)) * scale
            return outputs

    model = Tower()

    def run(count: int) -> Tensor:
        loss: Tensor = (model(flat(count), scale=2.0) - model(inputs=flat(count))).square().mean()
        return loss

    graph = with_edges(capture(model, run), model, run)
    assert graph.edges_from == "export"
    assert flows(graph) == {("first", "second"): 10, ("second", MODEL): 4, (MODEL, LOSS): 4}


# --- other ways --------------------------------------------------------------------------------------------------------


class Batch:
    """A type that torch.export does not know and refuses as an input."""

    def __init__(self, count: int) -> None:
        self.rows, self.words = flat(count), tokens(count)


class OfBatch(nn.Module):
    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, batch: Batch, scale: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.model(getattr(batch, self.field))
        return outputs if scale is None else outputs * scale


def inner_flows(graph: OpGraph) -> Flows:
    """Named as in the model that OfBatch holds."""
    names = {op.name: op.name.removeprefix("model.") for op in graph.ops} | {"model": MODEL}
    return {(names[source], names[target]): size for (source, target), size in flows(graph).items()}


def test_what_export_refuses_is_traced_by_fx_with_the_same_answer() -> None:
    graph = graph_of(OfBatch(TwoPaths(), "rows"), Batch)
    assert graph.edges_from == "fx"
    assert graph.edges_note.startswith("export: ")
    assert "Batch" in graph.edges_note
    assert inner_flows(graph) == TWO_PATHS


def test_fx_takes_of_several_results_the_one_that_is_used() -> None:
    graph = graph_of(OfBatch(Attentive(), "words"), Batch)
    assert graph.edges_from == "fx"
    assert inner_flows(graph) == {("inputs", "attention"): 6 * 16, ("attention", LOSS): 6 * 16}


def test_fx_knows_a_shared_module_by_its_first_name() -> None:
    shared = nn.Linear(12, 12)
    graph = graph_of(OfBatch(nn.Sequential(shared, nn.ReLU(), shared), "rows"), Batch)
    assert graph.edges_from == "fx"
    assert inner_flows(graph) == {("0", "1"): 12, ("1", "0"): 12, ("0", LOSS): 12}


class Moody(nn.Module):
    """Branches on the value of a tensor: no tracer can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(12, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(self.stem(inputs))
        outputs: Tensor = self.head(hidden if hidden.sum() > -1 else -hidden)
        return outputs


def test_what_no_tracer_follows_is_a_chain_of_the_ops_that_work() -> None:
    """The model sums up what the body made, so it is an op at work, after its children; the body itself is not."""
    graph = graph_of(Moody())
    assert graph.edges_from == "modules"
    assert "export: " in graph.edges_note
    assert "fx: TraceError: symbolically traced variables" in graph.edges_note
    assert flows(graph) == chain(graph, "stem", "body.0", "body.1", "head", MODEL, LOSS)
    assert flows(graph)["stem", "body.0"] == 6


def test_a_loss_that_calls_only_parts_of_the_model_gets_a_chain() -> None:
    model = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))

    def run(count: int) -> Tensor:
        loss: Tensor = model[2](model[1](model[0](flat(count)))).square().mean()
        return loss

    graph = with_edges(capture(model, run), model, run)
    assert (graph.edges_from, graph.edges_note) == ("modules", "the loss never calls the model as a whole")
    assert flows(graph) == chain(graph, "0", "1", "2", LOSS)


# --- shipped workloads -------------------------------------------------------------------------------------------------


def workload_graph(spec: str) -> OpGraph:
    workload = load_workload(spec)
    model, data = workload.model(), workload.dataset()

    def run(count: int) -> Tensor:
        return workload.loss(model, data[torch.arange(count)])

    return with_edges(capture(model, run), model, run)


@pytest.mark.parametrize("spec", ["mlp-tiny", "vgg-tiny", "digits"])
def test_a_sequential_workload_is_a_chain_of_its_layers(spec: str) -> None:
    graph = workload_graph(spec)
    assert graph.edges_from == "export"
    assert flows(graph) == chain(graph, *(op.name for op in graph.ops if op.name != MODEL))


@pytest.mark.parametrize("spec", ["resnet-tiny", "gpt-tiny"])
def test_every_op_with_parameters_is_on_a_way_to_the_loss(spec: str) -> None:
    graph = workload_graph(spec)
    assert graph.edges_from == "export"
    reaches = {LOSS}
    for _ in graph.ops:
        reaches |= {source for source, target in flows(graph) if target in reaches}
    assert {parameter.op for parameter in graph.parameters} <= reaches


def test_the_edges_of_a_transformer_block() -> None:
    """tiny: 16 tokens of width 32, a vocabulary of 64; the position's embedding is the same for all 4 samples."""
    edges, width = flows(workload_graph("gpt-tiny")), 16 * 32
    assert edges["0.token", "0"] == width
    assert edges["0.position", "0"] == width / 4
    assert {pair: size for pair, size in edges.items() if pair[0].startswith("1") or pair[1].startswith("1")} == {
        ("0", "1.attention.0"): width,
        ("1.attention.0", "1.attention.1"): width,
        ("1.attention.1", "1.attention.2"): 3 * width,
        ("1.attention.2", "1.attention.3"): width,
        ("0", "1"): width,
        ("1.attention.3", "1"): width,
        ("1", "1.mlp.0"): width,
        ("1.mlp.0", "1.mlp.1"): width,
        ("1.mlp.1", "1.mlp.2"): 4 * width,
        ("1.mlp.2", "1.mlp.3"): 4 * width,
        ("1.mlp.3", "1"): width,
        ("1", "2.attention.0"): width,
        ("1", "2"): width,
    }
    assert edges["4", LOSS] == 16 * 64


# --- what is left alone ------------------------------------------------------------------------------------------------


class Remembering(nn.Module):
    """Keeps its last output, as models do that are looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.last: object = "nothing yet"

    def forward(self, batch: Batch) -> Tensor:
        outputs: Tensor = self.layer(batch.rows)
        self.last = outputs
        return outputs


def test_tracing_leaves_no_hooks_no_gradients_and_no_proxies_behind() -> None:
    model = Remembering()
    graph = graph_of(model, Batch)
    assert graph.edges_from == "fx"
    assert type(model.last) is Tensor
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert model(Batch(2)).shape == (2, 3)


def test_the_edges_are_all_that_is_added() -> None:
    model = TwoPaths()

    def run(count: int) -> Tensor:
        loss: Tensor = model(flat(count)).square().mean()
        return loss

    plain = capture(model, run)
    assert plain.edges == ()
    graph = with_edges(plain, model, run)
    assert (graph.ops, graph.parameters) == (plain.ops, plain.parameters)
    assert graph.fingerprint() == plain.fingerprint()
