"""Problems from workloads: the layers and times of the simulator, prices of cluster file or list, fitted shares."""

from __future__ import annotations

import json

import pytest

from autotune.cli.main import main
from autotune.jobs.provision.from_workload import Wanted, measure, workload_problem
from autotune.jobs.question import Question
from autotune.simulate.roofline import op_s
from autotune.workloads.errors import SpecError

CLUSTER = """emulation = "paced"
[device.cpu]
flops = "1 GFLOP/s"
memory_bandwidth = "10 GB/s"
launch = "5 us"
price_per_hour = 0.2
[device.gpu]
flops = "50 GFLOP/s"
memory_bandwidth = "100 GB/s"
launch = "20 us"
price_per_hour = 3
[[host]]
name = "h0"
devices = ["2 x cpu", "gpu"]
uplink = "1 Gbit/s"
downlink = "1 Gbit/s"
latency = "50 us"
"""


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "two-kinds.toml"
    path.write_text(CLUSTER)
    return str(path)


@pytest.fixture
def question(cluster, tmp_path):
    return Question(workload="mlp", clusters=(cluster,), results=tmp_path)


def test_layers_and_times_are_those_of_the_simulator(question):
    problem = workload_problem(question, Wanted(examples=1e6, min_throughput=0, limits={"gpu": 2}), None)
    measured = measure(question)
    batch = measured.batch
    assert problem.names == ("cpu", "gpu")
    assert [one.price_per_hour for one in problem.types] == [0.2, 3.0]
    assert [one.limit for one in problem.types] == [None, 2]
    device = measured.costs[1].cluster.devices[2]
    by_name = {layer.name: layer for layer in problem.layers}
    for op in measured.graph.ops:
        if op.name in by_name:
            expected = (op_s(op, device, batch) + op_s(op, device, batch, backward=True)) / batch
            assert by_name[op.name].compute_s[1] == pytest.approx(expected)
            assert by_name[op.name].transfer_s[0] == pytest.approx(
                2 * (50e-6 + op.output_bytes_per_sample * batch / 125e6) / batch
            )


def test_what_does_not_divide_shows_in_the_shares(question):
    cpu, gpu = workload_problem(question, Wanted(examples=1, min_throughput=0, limits={}), None).types
    assert 0 < gpu.alpha < cpu.alpha < 1  # launches weigh more where the rest is fast
    assert gpu.alpha_error < 0.01
    assert 0 < cpu.beta < 1


def test_a_device_without_a_price_is_named(tmp_path):
    question = Question(workload="mlp", clusters=("mixed4",), results=tmp_path)
    with pytest.raises(SpecError, match="'full' has no price"):
        workload_problem(question, Wanted(examples=1, min_throughput=0, limits={}), None)
    listed = workload_problem(question, Wanted(examples=1, min_throughput=0, limits={}), lambda _: 1.5)
    assert {one.price_per_hour for one in listed.types} == {1.5}


def test_the_command_provisions_a_workload(cluster, tmp_path, capsys):
    arguments = ["--workload", "mlp", "--cluster", cluster, "--min-throughput", "2000", "--results", str(tmp_path)]
    assert main(["provision", *arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["proven"]
    assert answer["throughput"] >= 2000
    assert answer["source"]["workload"] == "mlp"
    assert main(["provision", *arguments, "--limit", "tpu=1"]) == 2
    assert "'tpu'" in capsys.readouterr().err
