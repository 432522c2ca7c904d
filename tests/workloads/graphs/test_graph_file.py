"""Op graphs as files: what they mean, where they can be cut, and what is refused."""

from __future__ import annotations

import json
import random

import pytest

from autotune.results.store.store import write_json
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Edge
from autotune.workloads.graphs.graph_cuts import graph_cuts, passing_bytes
from autotune.workloads.graphs.graph_file import GraphFile, GraphOp, op_graph, read_graph_file, read_graph_workload

CHAIN = GraphFile(
    name="chain",
    global_batch=8,
    ops=tuple(GraphOp(name=f"op{i}", param_bytes=100 * i, output_bytes_per_sample=10.0 + i) for i in range(4)),
)


def random_file(seed):
    draw = random.Random(seed)
    size = draw.randint(2, 12)
    out = [float(draw.randint(1, 9)) for _ in range(size)]
    pairs = {(a, b) for b in range(1, size) for a in range(b) if draw.random() < 0.4}
    ops = tuple(GraphOp(name=str(index), output_bytes_per_sample=out[index]) for index in range(size))
    edges = tuple(Edge(source=str(a), target=str(b), bytes_per_sample=out[a]) for a, b in sorted(pairs))
    return GraphFile(name="random", global_batch=4, ops=ops, edges=edges), pairs, out


def test_a_written_graph_is_read_back(tmp_path):
    write_json(tmp_path / "chain.json", CHAIN)
    assert read_graph_file(tmp_path / "chain.json") == CHAIN


def test_without_edges_it_is_a_chain_and_holds_four_times_its_parameters(tmp_path):
    write_json(tmp_path / "chain.json", CHAIN)
    found = read_graph_workload(str(tmp_path / "chain.json"), {"global_batch": "32"})
    assert [edge.bytes_per_sample for edge in found.graph.edges] == [10.0, 11.0, 12.0]
    assert found.graph.held_bytes == 4 * 600
    assert found.global_batch == 32
    assert found.cuts.first_ops == (0, 1, 2, 3)
    assert found.cuts.stream_bytes == (0.0, 10.0, 11.0, 12.0)


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_carries_each_tensor_that_is_read_behind_it_once(seed):
    file, pairs, out = random_file(seed)
    if not file.edges:
        return
    expected = [
        sum(out[a] for a in range(first) if any((a, b) in pairs for b in range(first, len(out))))
        for first in range(len(out))
    ]
    assert passing_bytes(op_graph(file)) == pytest.approx(expected)


def test_of_many_places_those_with_few_bytes_are_kept():
    ops = tuple(GraphOp(name=str(i), output_bytes_per_sample=1.0 if i % 5 == 4 else 9.0) for i in range(100))
    graph = op_graph(GraphFile(name="long", global_batch=4, ops=ops))
    cuts = graph_cuts(graph, 1, most=10)
    assert len(cuts.first_ops) == 11
    assert set(cuts.stream_bytes[1:]) == {1.0}


def changed(**values):
    data = json.loads(
        json.dumps(
            {
                "kind": "autotune graph",
                "schema": 1,
                "name": "a",
                "global_batch": 4,
                "ops": [{"name": "x"}, {"name": "y"}],
            }
        )
    )
    return data | values


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"kind": "autotune profile"}, '"kind": "autotune graph"'),
        (changed(schema=7), "schema 7"),
        (changed(ops=[]), "0 ops"),
        (changed(global_batch=0), "1 <= min_samples <= global_batch"),
        (changed(ops=[{"name": "x"}, {"name": "x"}]), "'x' is there twice"),
        (changed(ops=[{"name": "x", "param_bytes": -1}]), "ops[0] ('x'): param_bytes is -1"),
        (changed(ops=[{"name": "x", "parm_bytes": 1}]), "did you mean 'param_bytes'"),
        (changed(edges=[{"source": "x", "target": "z", "bytes_per_sample": 1}]), "edges[0] names op 'z'"),
        (changed(edges=[{"source": "y", "target": "x", "bytes_per_sample": 1}]), "in the order they run forward"),
        (changed(edges=[{"source": "x", "target": "y", "bytes_per_sample": -1}]), "edges[0].bytes_per_sample is -1"),
        (changed(name="a/b"), "1 to 150 letters"),
    ],
)
def test_a_wrong_graph_is_refused_with_the_place(tmp_path, data, says):
    (tmp_path / "graph.json").write_text(json.dumps(data))
    with pytest.raises(SpecError) as refused:
        read_graph_file(tmp_path / "graph.json")
    assert says in str(refused.value)


def test_a_graph_has_no_other_option_than_its_batch(tmp_path):
    write_json(tmp_path / "chain.json", CHAIN)
    with pytest.raises(SpecError, match="global_batch"):
        read_graph_workload(str(tmp_path / "chain.json"), {"norm": "batch"})
    with pytest.raises(SpecError, match="whole number"):
        read_graph_workload(str(tmp_path / "chain.json"), {"global_batch": "many"})
    with pytest.raises(SpecError, match="cannot read"):
        read_graph_workload(str(tmp_path / "absent.json"))
