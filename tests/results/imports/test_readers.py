"""Files of other tools: their numbers arrive in SI units, and what is wrong is named by row and column."""

from __future__ import annotations

import json

import pytest

from autotune.results.imports.formats import FORMATS, Format, detect, import_files, register
from autotune.results.imports.imported import Asked
from autotune.workloads.errors import SpecError

GRAPH = """\
node3 -- Linear(in_features=8, out_features=8) -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=640.0, parameter_size=256.0
node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=[320.0; 320.0], parameter_size=0.000
node2 -- ReLU(inplace) -- forward_compute_time=1.0, backward_compute_time=1.5, activation_size=1280.0, parameter_size=0.000 -- stage_id=1
\tnode2 -- node3
\tnode1 -- node2
\tnode1 -- node3
"""
LAYERS = """\
layer,tp,mbs,forward_ms,backward_ms,params_mb,activation_bytes,memory_mb
embed,1,1,1,2,4,100,17
embed,1,2,2,4,4,200,18
head,1,1,3,6,2,50,9
head,1,2,4,8,2,100,10
embed,2,1,0.6,1.2,2,100,9
head,2,1,2,4,1,50,5
"""


def imported(tmp_path, text, *, file="file.txt", name="", **asked):
    (tmp_path / file).write_text(text)
    return import_files(Asked(files=(tmp_path / file,), **asked), name)


def refusal(tmp_path, text, **asked):
    with pytest.raises(SpecError) as refused:
        imported(tmp_path, text, **asked)
    return str(refused.value)


def test_an_op_graph_is_put_in_order_with_times_and_bytes_of_a_sample(tmp_path):
    found = imported(tmp_path, GRAPH, samples=64, device="V100")
    assert [op.name for op in found.graph.ops] == ["node1", "node2", "node3"]
    assert [op.kind for op in found.graph.ops] == ["Input0", "ReLU", "Linear"]
    assert [op.output_bytes_per_sample for op in found.graph.ops] == [10.0, 20.0, 10.0]
    assert [(edge.source, edge.target, edge.bytes_per_sample) for edge in found.graph.edges] == [
        ("node1", "node2", 10.0),
        ("node1", "node3", 10.0),
        ("node2", "node3", 20.0),
    ]
    (rank,) = found.profile.ranks
    assert rank.device == "V100"
    assert rank.compute.seconds(64) == pytest.approx(8.5e-3)
    assert rank.op("node3").backward.seconds(32) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            GRAPH.replace("forward_compute_time=1.0", "forward_compute_time=fast"),
            "row 3, column 'forward_compute_time'",
        ),
        (GRAPH.replace("backward_compute_time=4.0, ", ""), "row 1 has no 'backward_compute_time'"),
        (GRAPH.replace("activation_size=640.0", "activation_size=-1"), "row 1, column 'activation_size'"),
        (GRAPH.replace("\tnode2 -- node3", "node2 -> node3"), "row 4 is neither an op"),
        (GRAPH + "\tnode3 -- node9\n", "names 'node9'"),
        (GRAPH + "\tnode3 -- node2\n", "on a cycle"),
        (GRAPH + GRAPH.splitlines()[0], "row 7: op 'node3' is there twice"),
        (GRAPH.replace("=2.0,", "=nan,"), "row 1, column 'forward_compute_time': 'nan'"),
    ],
)
def test_a_wrong_op_graph_is_refused_with_its_row(tmp_path, text, says):
    assert says in refusal(tmp_path, text, samples=64)


def test_the_samples_of_a_pass_must_be_stated(tmp_path):
    assert "--samples" in refusal(tmp_path, GRAPH)


def test_layers_become_a_chain_with_a_line_for_each_and_degrees_of_their_own(tmp_path):
    found = imported(tmp_path, LAYERS, file="layers.csv", device="A100")
    assert [op.name for op in found.graph.ops] == ["embed", "head"]
    assert [op.param_bytes for op in found.graph.ops] == [4e6, 2e6]
    assert [op.output_bytes_per_sample for op in found.graph.ops] == [100.0, 50.0]
    assert [op.saved_bytes_per_sample for op in found.graph.ops] == [1e6, 1e6]
    (rank,) = found.profile.ranks
    assert rank.compute.seconds(2) == pytest.approx(18e-3)
    assert (rank.op("head").forward.fixed_s, rank.op("head").forward.per_sample_s) == pytest.approx((2e-3, 1e-3))
    assert rank.memory.peak_bytes(2) == pytest.approx(28e6)
    assert rank.shared_by(2).compute.seconds(1) == pytest.approx(7.8e-3)
    assert rank.shared_by(2).includes_sums


def test_rows_may_be_json_and_tables_within_tables(tmp_path):
    rows = [dict(zip(LAYERS.splitlines()[0].split(","), line.split(","), strict=True)) for line in LAYERS.split()[1:]]
    flat = imported(tmp_path, json.dumps(rows), file="a.json", name="layers")
    nested: dict = {}
    for row in rows:
        cells = {key: float(value) for key, value in row.items() if key not in ("tp", "mbs", "layer")}
        nested.setdefault(row["tp"], {}).setdefault(row["mbs"], {})[row["layer"]] = cells
    deep = imported(tmp_path, json.dumps(nested), file="b.json", name="layers", keys=("tp", "mbs", "layer"))
    assert flat.profile.ranks == deep.profile.ranks
    assert flat.graph.ops == deep.graph.ops
    assert "--keys" in refusal(tmp_path, json.dumps(nested), file="b.json", name="layers")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAYERS.replace("head,1,1,3,", "head,1,1,three,"), "row 4, column 'forward_ms': 'three' is no number"),
        (LAYERS.replace("head,1,1,", "head,1,1.5,"), "row 4, column 'mbs': 1.5 must be a whole number"),
        (LAYERS.replace("forward_ms", "forward"), "states no unit: name it forward_s, forward_ms"),
        (LAYERS.replace("head,1,2,4,8,2,100,10", "head,1,2"), "row 5 has 3 cells but there are 8 columns"),
        (LAYERS.replace("head,2,1,2,4,1,50,5\n", ""), "degree 2 has no row of layer 'head'"),
        (LAYERS + "head,1,2,4,8,2,100,10\n", "layer 'head' at micro-batch 2 twice"),
        (LAYERS.replace("tp,mbs", "mbs,mbs"), "names column 'mbs' twice"),
        (LAYERS.splitlines()[0], "has no rows"),
        ("", "no format that is recognised"),
    ],
)
def test_wrong_rows_are_refused_with_row_and_column(tmp_path, text, says):
    assert says in refusal(tmp_path, text, file="layers.csv")


def test_a_unit_of_all_times_may_be_stated(tmp_path):
    text = LAYERS.replace("forward_ms", "fwd").replace("backward_ms", "bwd")
    found = imported(tmp_path, text, file="layers.csv", time_unit="us")
    assert found.profile.ranks[0].compute.seconds(2) == pytest.approx(18e-6)


def test_devices_measured_only_together_count_for_one(tmp_path):
    text = "\n".join(line for line in LAYERS.splitlines() if line.split(",")[1] != "1")
    found = imported(tmp_path, text, file="layers.csv")
    assert found.profile.ranks[0].compute.seconds(1) == pytest.approx(2 * 7.8e-3)
    assert any("not measured alone" in note for note in found.notes)


def metis(samples, times, memory):
    params = [4e6, 2e6]
    return json.dumps(
        {
            "model": {
                "model_name": "GPT",
                "parameters": {"parameters_per_layer_bytes": params, "activation_parameters_bytes": params},
            },
            "execution_time": {"layer_compute_total_ms": times},
            "execution_memory": {"layer_memory_total_mb": memory},
        }
    )


def test_files_named_for_device_degree_and_batch(tmp_path):
    contents = {
        "DeviceType.A100_tp1_bs1.json": metis(1, [3, 9], [17, 9]),
        "DeviceType.A100_tp1_bs2.json": metis(2, [6, 12], [18, 10]),
        "DeviceType.A100_tp2_bs1.json": metis(1, [1.8, 6], [9, 5]),
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    files = tuple(tmp_path / name for name in contents)
    assert detect(files) == "metis"
    found = import_files(Asked(files=files))
    assert found.graph.name == "GPT"
    (rank,) = found.profile.ranks
    assert (rank.device, rank.compute.seconds(2)) == ("A100", pytest.approx(18e-3))
    assert rank.op("layer0").forward.seconds(1) == pytest.approx(1e-3)
    assert rank.shared_by(2).compute.seconds(1) == pytest.approx(7.8e-3)
    assert found.graph.ops[0].output_bytes_per_sample == 0.0
    files[0].write_text(json.dumps({"execution_time": {}}))
    with pytest.raises(SpecError, match="layer_compute_total_ms"):
        import_files(Asked(files=files))
    files[0].write_text(metis(1, [3, 9], [17]))
    with pytest.raises(SpecError, match="one number per layer"):
        import_files(Asked(files=files))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("autotune.results.imports.table.MOST_BYTES", 10)
    assert "MiB are read" in refusal(tmp_path, LAYERS, file="layers.csv")


def test_formats_are_registered_once_and_named_when_unknown(tmp_path):
    with pytest.raises(SpecError, match="registered already"):
        register("layers", Format(text="", read_by=""))
    assert "unknown import format" in refusal(tmp_path, LAYERS, name="tracing")
    assert {"layers", "metis", "pipedream"} <= set(FORMATS)
