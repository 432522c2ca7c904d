"""Predictions of plans with pipeline stages: simulate, plan, and what is refused."""

from __future__ import annotations

import json

import pytest

from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan
from tests.autotune.jobs.predictions import MIXED4, digits_graph, forecast, run, simulator_of


def pipelined(tmp_path, **changes):
    """A file with a plan of two stages of two ranks each."""
    pipeline = {"first_ops": (0, 4), "stage_ranks": ((0, 1), (2, 3)), "micro_batches": 4} | changes
    plan = Plan(batch=BatchPlan(samples=(32, 32, 32, 32)), pipeline=PipelinePlan(**pipeline))
    best = BestPlan(
        workload="digits",
        workload_fingerprint="",
        cluster="mixed4",
        cluster_fingerprint="",
        plan=plan,
        step_s=1.0,
        speedup_over_default=None,
    )
    write_json(tmp_path / "stages.json", best)
    return ["simulate", "--cluster", "mixed4", "--plan", str(tmp_path / "stages.json")]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_a_pipelined_plan_is_predicted(schedule, capsys, tmp_path):
    found = forecast(capsys, tmp_path, *pipelined(tmp_path, schedule=schedule))
    assert found["step_s"] > 0
    assert found["ranks"][0]["peak_memory_bytes"] != found["ranks"][3]["peak_memory_bytes"]
    for rank in found["ranks"]:
        assert rank["bubble"] == pytest.approx(1 - rank["compute_s"] / found["step_s"])


def test_the_schedule_of_a_pipelined_plan_is_drawn(capsys, tmp_path):
    code, out, err = run(capsys, *pipelined(tmp_path), "--workload", "digits", "--results", str(tmp_path))
    assert code == 0, err
    assert "2 stages on ranks 0+1 > 2+3 from ops 0/4, 4 micro-batches, 1f1b" in " ".join(out.split())
    rows = [line for line in out.splitlines() if line.startswith("rank ") and "bubble" in line]
    assert len(rows) >= 4
    assert "0" in rows[0].split("MiB")[-1]  # the first micro-batch
    assert "takes memory" in out


def test_plan_chooses_stages_where_links_are_slow(capsys, tmp_path):
    """A cluster on which every gradient takes long: activations are few, so that stages beat any plan without."""
    text = '[device.one]\nflops = "2 GFLOP/s"\nmemory_bandwidth = "2 GB/s"\n'
    for name in ("a", "b"):
        text += f'[[host]]\nname = "{name}"\ndevices = ["one"]\nuplink = "10 Mbit/s"\ndownlink = "10 Mbit/s"\n'
    (tmp_path / "slow.toml").write_text(text)
    code, out, err = run(
        capsys,
        *("plan", "--workload", "vgg-tiny", "--cluster", str(tmp_path / "slow.toml")),
        *("--results", str(tmp_path), "--json", "--placement", "off"),
    )
    assert code == 0, err
    found = json.loads(out)["forecast"]
    assert len(found["plan"]["pipeline"]["first_ops"]) == 2
    assert found["plan"]["pipeline"]["micro_batches"] > 1


def test_a_model_that_fits_no_device_is_cut_into_stages(capsys, tmp_path):
    text = '[device.one]\nflops = "2 GFLOP/s"\nmemory_bandwidth = "2 GB/s"\nmemory = "{memory}"\n'
    for name in ("a", "b", "c"):
        text += f'[[host]]\nname = "{name}"\ndevices = ["one"]\nuplink = "1 Gbit/s"\ndownlink = "1 Gbit/s"\n'
    arguments = ["plan", "--workload", "vgg-tiny", "--results", str(tmp_path), "--json", "--cluster"]
    found = {}
    for memory in ("1 GiB", "1.5 MB"):
        (tmp_path / "small.toml").write_text(text.format(memory=memory))
        code, out, err = run(capsys, *arguments, str(tmp_path / "small.toml"))
        assert code == 0, err
        found[memory] = json.loads(out)["forecast"]
    assert found["1 GiB"]["plan"]["pipeline"] is None
    assert found["1.5 MB"]["plan"]["pipeline"] is not None
    assert all(rank["peak_memory_bytes"] <= 1.5e6 for rank in found["1.5 MB"]["ranks"])


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ({"first_ops": (0, 4), "stage_ranks": ((0, 1), (2,)), "micro_batches": 4}, "each of the 4 ranks"),
        ({"first_ops": (1, 4), "stage_ranks": ((0, 1), (2, 3)), "micro_batches": 4}, "rising from 0"),
        ({"first_ops": (0, 4), "stage_ranks": ((0, 1), (2, 3)), "micro_batches": 5}, "a multiple of it"),
        ({"first_ops": (0, 4), "stage_ranks": ((0, 1), (2, 3)), "micro_batches": 0}, "at least 1"),
        ({"first_ops": (0, 4), "stage_ranks": ((0, 1), (2, 3)), "micro_batches": 4, "schedule": "x"}, "gpipe, 1f1b"),
    ],
)
def test_stages_that_cannot_be_are_refused(pipeline, said):
    plan = Plan(batch=BatchPlan(samples=(32, 32, 32, 32)), pipeline=PipelinePlan(**pipeline))
    with pytest.raises(SpecError, match=said):
        plan.validate(num_ranks=4, global_batch=64)


def test_a_stage_beyond_the_model_is_refused():
    pipeline = PipelinePlan(first_ops=(0, 400), stage_ranks=((0, 1), (2, 3)), micro_batches=4)
    plan = Plan(batch=BatchPlan(samples=(32, 32, 32, 32)), pipeline=pipeline)
    with pytest.raises(SpecError, match="400"):
        simulator_of(digits_graph(), MIXED4, []).forecast(plan)


GPUS = """
[device.a100]
flops = "20 GFLOP/s"
memory_bandwidth = "20 GB/s"
memory = "{memory:g} MB"
[device.v100]
flops = "8 GFLOP/s"
memory_bandwidth = "9 GB/s"
memory = "{half:g} MB"
"""


@pytest.mark.slow
def test_sixteen_mixed_gpus_hold_what_none_of_them_holds(capsys, tmp_path):
    """Four hosts, one of them with both kinds: the model's state alone is larger than any device's memory."""
    text = GPUS.format(memory=1.2, half=0.8)
    for name, devices in (
        ("a", '"4 x a100"'),
        ("b", '"4 x v100"'),
        ("c", '"4 x v100"'),
        ("d", '"2 x a100", "2 x v100"'),
    ):
        text += f'[[host]]\nname = "{name}"\ndevices = [{devices}]\nuplink = "1 Gbit/s"\ndownlink = "1 Gbit/s"\n'
    (tmp_path / "gpus.toml").write_text(text)
    code, out, err = run(
        capsys,
        *("plan", "--workload", "vgg-tiny", "--cluster", str(tmp_path / "gpus.toml")),
        *("--results", str(tmp_path), "--json"),
    )
    assert code == 0, err
    found = json.loads(out)["forecast"]
    stages = found["plan"]["pipeline"]["stage_ranks"]
    assert len(stages) > 1
    assert max(map(len, stages)) > 1
    assert not any("no job runs" in doubt for doubt in found["doubts"])
    for rank in found["ranks"]:
        assert rank["peak_memory_bytes"] <= rank["memory_bytes"]


def test_what_no_job_runs_is_proposed_if_asked(capsys, tmp_path):
    """Two devices on one host, where messages are free."""
    found = {}
    for options in ((), ("--any-plan",)):
        text = GPUS.format(memory=1000, half=1000) + '[[host]]\nname = "a"\ndevices = ["2 x a100"]\n'
        (tmp_path / "two.toml").write_text(text)
        code, out, err = run(
            capsys,
            *("plan", "--workload", "vgg-tiny", "--cluster", str(tmp_path / "two.toml"), *options),
            *("--results", str(tmp_path), "--json"),
        )
        assert code == 0, err
        forecast = json.loads(out)["forecast"]
        found[options] = any("no job runs" in doubt for doubt in forecast["doubts"]), forecast["step_s"]
    assert not found[()][0]
    assert found["--any-plan",][1] <= found[()][1]


def test_what_no_job_runs_is_proposed_where_nothing_else_fits(capsys, tmp_path):
    """A layer that no device holds: only devices that share its ops do, which is said."""
    text = GPUS.format(memory=0.35, half=0.35) + '[[host]]\nname = "a"\ndevices = ["4 x a100"]\n'
    (tmp_path / "four.toml").write_text(text)
    code, out, err = run(
        capsys,
        *("plan", "--workload", "vgg-tiny", "--cluster", str(tmp_path / "four.toml")),
        *("--results", str(tmp_path), "--json"),
    )
    assert code == 0, err
    found = json.loads(out)["forecast"]
    assert found["plan"]["pipeline"]["tensor_parallel"] > 1
    assert any("no job runs this plan: the plan's tensor_parallel" in doubt for doubt in found["doubts"])
    assert all(rank["peak_memory_bytes"] <= 0.35e6 for rank in found["ranks"])
