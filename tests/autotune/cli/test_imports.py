"""`autotune import`, and predictions of op graphs without their model."""

from __future__ import annotations

import json

import pytest

from tests.autotune.jobs.predictions import run

CLUSTER = """
[device.gpu]
memory = "16 GB"

[[host]]
name = "a"
devices = ["gpu"]
uplink = "80 Mbit/s"
downlink = "80 Mbit/s"

[[host]]
name = "b"
devices = ["gpu"]
uplink = "80 Mbit/s"
downlink = "80 Mbit/s"
"""
LAYERS = """\
layer,mbs,forward_ms,backward_ms,params_bytes,activation_bytes,memory_bytes
first,4,10,20,1000000,400,4000400
second,4,10,20,1000000,400,4000400
third,4,10,20,1000000,400,4000400
"""


@pytest.fixture
def files(tmp_path, capsys):
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "net.csv").write_text(LAYERS)
    code, out, err = run(
        capsys, "import", str(tmp_path / "net.csv"), "--output", str(tmp_path), "--global-batch", "8", "--json"
    )
    assert code == 0, err
    written = json.loads(out)
    return ("--workload", written["graph"], "--profile", written["profile"], "--cluster", str(tmp_path / "c.toml"))


def asked(capsys, tmp_path, command, files, *more):
    code, out, err = run(capsys, command, *files, "--results", str(tmp_path), "--json", *more)
    assert code == 0, err
    return json.loads(out)


def test_a_graph_and_its_profile_predict_data_parallel_steps(tmp_path, capsys, files):
    """A step of 4 samples on each of two GPUs: 90 ms of computing, and 3 MB over 10 MB/s behind the first gradient.

    Buckets of 1 MiB and more: first the last two layers (2 MB are ready after 70 ms), then the first one (90 ms).
    """
    found = asked(capsys, tmp_path, "simulate", files, "--plan", "default")
    assert found["workload"] == "net"
    assert found["step_s"] == pytest.approx(0.070 + 0.3, rel=1e-6)
    assert found["origins"][0]["source"] == "imported (external)"


def test_a_plan_without_the_model_is_no_slower_than_the_default(tmp_path, capsys, files):
    found = asked(capsys, tmp_path, "plan", files)
    assert found["forecast"]["step_s"] <= found["default"]["step_s"]
    assert found["forecast"]["plan"]["pipeline"]["first_ops"][0] == 0  # two stages beat 10 MB/s


def test_a_graph_is_cut_into_stages_and_scheduled(tmp_path, capsys, files):
    found = asked(capsys, tmp_path, "schedule", files, "--stages", "2", "--micro-batches", "4")
    passes = {block for order in found["order"] for block, _, _ in order}
    assert len(found["order"]) == 2
    assert found["makespan"] >= found["makespan_lower_bound"] > 0
    assert len(passes) >= 4
    code, _, err = run(capsys, "schedule", *files, "--stages", "9", "--micro-batches", "4")
    assert (code, "there must be 1 to 2" in err) == (2, True)


def test_schedule_takes_blocks_or_a_workload(capsys):
    code, _, err = run(capsys, "schedule")
    assert (code, "name one of them" in err) == (2, True)


def test_a_graph_cannot_be_trained(capsys, files):
    code, _, err = run(capsys, "sweep", "--workload", files[1], "--ranks", "2")
    assert (code, "can be predicted" in err) == (2, True)


def test_the_screen_names_files_and_assumptions(tmp_path, capsys):
    (tmp_path / "net.csv").write_text(LAYERS.replace("activation_bytes", "unknown_column"))
    code, out, _ = run(capsys, "import", str(tmp_path / "net.csv"), "--output", str(tmp_path))
    assert code == 0
    assert "net.graph.json" in out
    assert "assumed: no activations were stated" in out
    assert "autotune simulate --workload" in out
    (tmp_path / "taken").write_text("a file")
    code, _, err = run(capsys, "import", str(tmp_path / "net.csv"), "--output", str(tmp_path / "taken"))
    assert (code, "--output" in err) == (2, True)
