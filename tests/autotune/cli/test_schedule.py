"""`autotune schedule` from the outside: the contract of its JSON, its files, its exit codes."""

from __future__ import annotations

import json

import pytest

from autotune.cli.main import main
from autotune.profilers.perfetto import read_trace
from autotune.workloads.block_file import graph_data
from tests.autotune.schedule.shapes import SHAPES


@pytest.fixture
def file(tmp_path):
    def write(graph):
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(graph if isinstance(graph, dict) else graph_data(graph)))
        return str(path)

    return write


def test_the_answer_has_what_the_contract_says(file, capsys):
    assert main(["schedule", file(SHAPES["V"](4)), "--micro-batches", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    contract = ["period", "period_lower_bound", "proven", "makespan", "makespan_lower_bound", "peak_memory", "order"]
    assert list(answer)[:9] == [*contract, "winner", "seconds"]
    assert (answer["period"], answer["period_lower_bound"], answer["proven"]) == (4.0, 4.0, True)
    assert answer["makespan"] == answer["makespan_lower_bound"] == 3 + 8 * 4 + 9
    assert answer["peak_memory"] == [4.0, 3.0, 2.0, 1.0]
    assert answer["order"][3][:2] == [["f3", 0, 3.0], ["b3", 0, 4.0]]
    assert [len(slots) for slots in answer["order"]] == [16] * 4


def test_the_chart_shows_bubbles_memory_and_the_gap(file, capsys):
    assert main(["schedule", file(SHAPES["K"](4)), "--micro-batches", "4"]) == 0
    shown = capsys.readouterr().out
    for words in ("makespan", "period 6 (proven shortest", "device 3  bubble", "/6", "without search: "):
        assert words in shown


def test_a_trace_and_a_csv_are_written(file, tmp_path):
    trace, csv = tmp_path / "trace.json", tmp_path / "order.csv"
    graph = file(SHAPES["V"](2))
    assert main(["schedule", graph, "--micro-batches", "2", "--trace", str(trace), "--csv", str(csv), "--json"]) == 0
    assert csv.read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    timeline = read_trace(trace)
    assert len(timeline.spans) == 8
    assert max(value for _, value in timeline.counters[0].points) == 2.0


def test_torch_reads_the_csv(file, tmp_path):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    csv = tmp_path / "order.csv"
    graph = graph_data(SHAPES["V"](3))
    for block in graph["blocks"][3:]:
        block["split"] = [1.5, 1.5]
    assert main(["schedule", file(graph), "--micro-batches", "4", "--csv", str(csv), "--json"]) == 0
    rows = [[schedules._Action.from_str(text) for text in line.split(",")] for line in csv.read_text().splitlines()]
    actions = {0: rows[0], 1: rows[1], 2: rows[2]}
    schedules._validate_schedule(actions, 3, 3, 4)
    kinds = {action.computation_type.value for row in rows for action in row}
    assert kinds in ({"F", "B"}, {"F", "I", "W"})


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (lambda data: data["blocks"][0].update(devices=[9]), 2, ["'f0'", "device 9"]),
        (lambda data: data["blocks"][0].update(after=["b0"]), 2, ["waits for itself"]),
        (lambda data: data["blocks"][1].update(after=["missing"]), 2, ["'f1'", "'missing'"]),
        (lambda data: data.update(memory=[4, 0.5, 4]), 3, ["'f1'", "device 1", "0.5"]),
        (lambda data: data["blocks"][-1].update(memory=1), 3, ["device 0"]),
    ],
)
def test_what_cannot_be_done_is_said_with_its_exit_code(file, capsys, edit, code, words):
    data = graph_data(SHAPES["V"](3))
    edit(data)
    assert main(["schedule", file(data), "--json"]) == code
    said = capsys.readouterr()
    assert not said.out
    for word in words:
        assert word in said.err


def test_a_csv_of_what_is_no_chain_is_refused(file, tmp_path, capsys):
    csv = str(tmp_path / "order.csv")
    assert main(["schedule", file(SHAPES["K"](4)), "--micro-batches", "2", "--csv", csv, "--json"]) == 2
    assert "not a chain" in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path, capsys):
    assert main(["schedule", str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text("{")
    assert main(["schedule", str(tmp_path / "bad.json")]) == 2
    assert "no JSON" in capsys.readouterr().err
