"""Block graphs: the file format, its errors, the cut of a backward."""

from __future__ import annotations

import copy
import json

import pytest

from autotune.workloads.block_file import block_graph, graph_data, read_block_graph
from autotune.workloads.blocks import Block, BlockGraph, split_backward
from autotune.workloads.errors import SpecError

TWO = {
    "devices": 2,
    "memory": [2, 1.5],
    "blocks": [
        {"name": "f0", "devices": [0], "time": 1, "memory": 1},
        {"name": "f1", "devices": [1], "time": 1.5, "memory": 1, "after": ["f0"]},
        {"name": "b1", "devices": [1], "time": 3, "memory": -1, "after": ["f1"], "split": [1, 2]},
        {"name": "b0", "devices": [0], "time": 3, "memory": -1, "after": ["b1"]},
    ],
    "link_time": [[0, 0.5], [0.25, 0]],
}


def test_a_file_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps(TWO))
    graph = read_block_graph(path)
    assert graph.blocks[1] == Block(name="f1", devices=(1,), seconds=1.5, memory=1.0, after=("f0",))
    assert graph.work_s == (4.0, 4.5)
    assert graph.before[1] == ((0, 0.5),)
    assert graph.before[2] == ((1, 0.0),)
    assert block_graph(graph_data(graph)) == graph


def edited(edit):
    data = copy.deepcopy(TWO)
    edit(data)
    return data


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda data: data["blocks"][1].update(devices=[5]), ["'f1'", "device 5", "there are 2"]),
        (lambda data: data["blocks"][1].update(devices=[]), ["'f1'", "no device"]),
        (lambda data: data["blocks"][1].update(devices=[1, 1]), ["'f1'", "twice"]),
        (lambda data: data["blocks"][1].update(time=-1), ["'f1'", "device 1", "time -1"]),
        (lambda data: data["blocks"][2].update(split=[1, -2]), ["'b1'", "device 1", "split -2"]),
        (lambda data: data["blocks"][2].update(split=[1]), ["'b1'", "device 1", "two times"]),
        (lambda data: data["blocks"][1].update(after=["f7"]), ["'f1'", "'f7'"]),
        (lambda data: data["blocks"][1].update(after=["f1"]), ["'f1'", "device 1", "waits for itself"]),
        (lambda data: data["blocks"][0].update(after=["b0"]), ["waits for itself", "'after'"]),
        (lambda data: data["blocks"][1].update(name="f0"), ["two blocks", "'f0'"]),
        (lambda data: data["blocks"][1].update(tiem=3), ["tiem", "did you mean 'time'"]),
        (lambda data: data["blocks"][1].update(time=float("nan")), ["'f1'", "nan"]),
        (lambda data: data.update(memory=[1]), ["1 limits", "2 devices"]),
        (lambda data: data.update(memory=[1, -1]), ["device 1", "-1"]),
        (lambda data: data.update(devices=0), ["at least one"]),
        (lambda data: data.update(blocks=[]), ["at least one block"]),
        (lambda data: data.update(link_time=[[0, 1]]), ["1 rows"]),
        (lambda data: data.update(link_time=[[0, 1], [1]]), ["row 1"]),
        (lambda data: data.update(link_time=[[0, -1], [1, 0]]), ["device 0 to 1", "-1"]),
    ],
)
def test_what_means_nothing_is_refused_by_name(edit, words):
    with pytest.raises(SpecError) as caught:
        block_graph(edited(edit))
    for word in words:
        assert word in str(caught.value)


def test_a_split_backward_holds_its_memory_until_its_weight_part():
    parts = split_backward(block_graph(TWO))
    assert [(b.name, b.seconds, b.memory, b.after) for b in parts.blocks[2:]] == [
        ("b1.input", 1.0, 0.0, ("f1",)),
        ("b1.weight", 2.0, -1.0, ("b1.input",)),
        ("b0", 3.0, -1.0, ("b1.input",)),
    ]
    assert (parts.blocks[3].whole, parts.blocks[3].part) == ("b1", "weight")


def test_a_link_is_paid_where_the_devices_differ():
    blocks = (
        Block(name="all", devices=(0, 1, 2), seconds=1.0),
        Block(name="again", devices=(2, 1, 0), seconds=1.0, after=("all",)),
        Block(name="one", devices=(2,), seconds=1.0, after=("again",)),
    )
    link_s = ((9.0, 1.0, 2.0), (1.0, 9.0, 3.0), (1.0, 1.0, 9.0))
    graph = BlockGraph(num_devices=3, memory=(1.0,) * 3, blocks=blocks, link_s=link_s)
    assert graph.before == ((), ((0, 0.0),), ((1, 3.0),))
