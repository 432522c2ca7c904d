"""Predictions as a user requests them: simulate, what-if, plan; and what is refused."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autotune.profilers.perfetto import read_trace
from autotune.results.store.store import write_json
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.roofline import compute_s
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, Plan, default_plan
from tests.autotune.jobs.predictions import MIXED4, PLAN, digits_graph, forecast, make_profile, run, simulator_of


@pytest.fixture(scope="module")
def graph():
    return digits_graph()


def test_simulate_needs_no_mpi_and_no_profile_where_speeds_are_stated(capsys, tmp_path):
    found = forecast(capsys, tmp_path, "simulate", "--cluster", "mixed4")
    assert found["plan"]["comm"]["reducer"] == "ddp"
    assert found["step_s"] > found["limit"]["step_s"] if "step_s" in found["limit"] else found["step_s"] > 0
    assert {origin["source"] for origin in found["origins"] if origin["what"].startswith("device")} == {"datasheet"}
    assert len(found["ranks"]) == 4


def test_the_screen_says_that_nothing_was_measured_and_what_it_rests_on(capsys, tmp_path):
    code, out, _ = run(
        capsys,
        "simulate",
        "--workload",
        "digits",
        "--cluster",
        "mixed4",
        "--results",
        str(tmp_path),
        "--what-if",
        "bandwidth*2",
    )
    assert code == 0
    assert "predicted, not measured" in out
    assert "What this rests on" in out
    assert "the samples per second" in out


def test_what_if_shows_before_and_after(capsys, tmp_path):
    before, after = forecast(
        capsys, tmp_path, "simulate", "--cluster", "slow-link4", "--what-if", "bandwidth.host3=1 Gbit/s"
    )
    assert after["step_s"] < before["step_s"]
    assert after["cluster"] == "slow-link4 with bandwidth.host3=1 Gbit/s"


def test_another_number_of_ranks_or_batch_gets_a_split_of_its_own(capsys, tmp_path):
    _, after = forecast(
        capsys, tmp_path, "simulate", "--cluster", "mixed4", "--what-if", "add=full", "--what-if", "batch=100"
    )
    samples = after["plan"]["batch"]["samples"]
    assert (len(samples), sum(samples)) == (5, 100)
    assert samples[0] > samples[3]


def test_a_simulated_trace_can_be_read(capsys, tmp_path):
    trace = tmp_path / "trace.json"
    forecast(capsys, tmp_path, "simulate", "--cluster", "mixed4", "--trace", str(trace))
    timeline = read_trace(trace)
    assert {span.rank for span in timeline.spans} == {0, 1, 2, 3}
    assert {"forward", "backward", "comm"} <= {span.kind for span in timeline.spans}


def test_plan_beats_the_default_and_says_how(capsys, tmp_path):
    export = tmp_path / "plan.json"
    found = forecast(capsys, tmp_path, "plan", "--cluster", "mixed4", "--export", str(export))
    assert found["forecast"]["step_s"] < found["default"]["step_s"]
    assert found["num_predicted"] > 10
    again = forecast(capsys, tmp_path, "simulate", "--cluster", "mixed4", "--plan", str(export))
    assert again["step_s"] == pytest.approx(found["forecast"]["step_s"])


@pytest.mark.parametrize("method", ["random", pytest.param("tpe", marks=pytest.mark.slow)])
def test_descent_is_no_worse_than_optuna_on_the_same_predictions(method, capsys, tmp_path):
    ours = forecast(capsys, tmp_path, "plan", "--cluster", "mixed4")["forecast"]["step_s"]
    theirs = forecast(capsys, tmp_path, "plan", "--cluster", "mixed4", "--method", method)["forecast"]["step_s"]
    assert ours <= theirs * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["simulate", "--cluster", "this-machine"], 2, "nothing is known of device"),
        (["simulate", "--cluster", "mixed4", "--what-if", "nonsense"], 2, "is no edit"),
        (["simulate", "--cluster", "mixed4", "--plan", "no-such-file.json"], 2, "no plan file"),
        (["simulate", "--cluster", "mixed4", "--plan", "best"], 2, "no best plan"),
        (["simulate", "--cluster", "mixed4", "--profile", "no-such-profile.json"], 2, "cannot read profile"),
        (["plan", "--cluster", "mixed4", "--min-throughput", "1e9"], 3, "at least 1e+09 samples/s"),
        (["plan", "--cluster", "mixed4", "--objective", "cost"], 2, "price_per_hour"),
        (["plan", "--cluster", "mixed4", "--objective", "energy"], 2, "busy_power"),
    ],
)
def test_bad_questions_get_one_line_with_the_remedy(arguments, code, said, capsys, tmp_path):
    found, out, err = run(capsys, *arguments, "--workload", "digits", "--results", str(tmp_path))
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert said in err


def test_cost_and_energy_where_they_are_stated(capsys, tmp_path):
    lines = (
        'emulation = "paced"',
        "[device.a]",
        'flops = "2 GFLOP/s"',
        "price_per_hour = 3.6",
        'busy_power = "100 W"',
        'idle_power = "20 W"',
        "[[host]]",
        'devices = ["a", "a"]',
    )
    text = "\n".join(lines)
    (tmp_path / "priced.toml").write_text(text)
    found = forecast(capsys, tmp_path, "simulate", "--cluster", str(tmp_path / "priced.toml"))
    busy = sum(rank["compute_s"] for rank in found["ranks"])
    assert found["joules_per_step"] == pytest.approx(100 * busy + 20 * (2 * found["step_s"] - busy))
    assert found["price_per_hour"] == pytest.approx(7.2)
    cheapest = forecast(capsys, tmp_path, "plan", "--cluster", str(tmp_path / "priced.toml"), "--objective", "energy")
    assert cheapest["forecast"]["joules_per_step"] <= cheapest["default"]["joules_per_step"]


def test_a_profile_replaces_the_datasheet(graph):
    stated = simulator_of(graph, MIXED4, []).step_s(PLAN)
    slower = simulator_of(graph, MIXED4, [make_profile(graph, MIXED4, slower=2.0, overhead_s=0.0)]).step_s(PLAN)
    computing = max(compute_s(graph, device, 16) for device in MIXED4.devices)
    assert slower - stated == pytest.approx(computing, rel=0.02)


def test_software_of_a_collective_is_added_to_its_bytes(graph):
    bare, loaded = (
        simulator_of(graph, MIXED4, [make_profile(graph, MIXED4, overhead_s=s)]).step_s(PLAN) for s in (0.0003, 0.0103)
    )
    assert loaded - bare == pytest.approx(0.01, rel=0.02)


def test_software_stays_when_links_change(graph):
    """From a profile of mixed4: twice the bandwidth halves the bytes' time and keeps the software's."""
    from autotune.workloads.changes.cluster_edits import Setting, edited

    profile = make_profile(graph, MIXED4, overhead_s=0.0103)
    faster = edited(Setting(cluster=MIXED4, global_batch=64), ["bandwidth*1000000"]).cluster
    quick = simulator_of(graph, faster, [profile]).step_s(PLAN)
    computing = max(compute_s(graph, device, 16) for device in MIXED4.devices)
    assert quick >= computing + 0.009


def test_beyond_what_was_measured_is_said(graph):
    profile = make_profile(graph, MIXED4)
    doubts = simulator_of(graph, MIXED4, [profile]).forecast(Plan(batch=BatchPlan(samples=(61, 1, 1, 1)))).doubts
    assert any("rank 1: 1 samples, measured from 4 to 64" in doubt for doubt in doubts)
    three = MIXED4.for_ranks(3)
    split = Plan(batch=BatchPlan(samples=(30, 20, 14)))
    assert any("predicted for 3" in doubt for doubt in simulator_of(graph, three, [profile]).forecast(split).doubts)


def test_sources_are_visible(graph):
    origins = {
        origin.what: origin for origin in simulator_of(graph, MIXED4, [make_profile(graph, MIXED4)]).costs.origins
    }
    assert origins["device full"].source == "measured (lab)"
    assert (origins["device full"].low, origins["device full"].high) == (4, 64)
    assert "measured on 4 ranks of mixed4 (lab)" in origins["all-reduce over gloo"].source


def test_a_profile_of_another_model_is_refused(graph):
    profile = make_profile(graph, MIXED4)
    ranks = tuple(dataclasses.replace(rank, ops=rank.ops[1:]) for rank in profile.ranks)
    with pytest.raises(SpecError, match="it is of another model"):
        cost_model(graph, MIXED4, [dataclasses.replace(profile, ranks=ranks)])


def test_an_imported_profile_serves_devices_we_do_not_have(graph, capsys, tmp_path):
    """A device that the cluster file only names is predicted from a profile that was measured elsewhere."""
    text = '[device.full]\n[device.half]\n[[host]]\nname = "host0"\ndevices = ["full", "half"]\n'
    (tmp_path / "named.toml").write_text(text)
    profile = make_profile(graph, MIXED4, label="measured elsewhere")
    write_json(tmp_path / "elsewhere.json", profile)
    arguments = ["--cluster", str(tmp_path / "named.toml"), "--profile", str(tmp_path / "elsewhere.json")]
    found = forecast(capsys, tmp_path, "simulate", *arguments)
    assert {origin["source"] for origin in found["origins"] if origin["what"].startswith("device")} == {
        "measured (measured elsewhere)"
    }


def test_memory_is_what_is_held_and_what_is_kept(graph):
    simulator = simulator_of(graph, MIXED4, [])
    plan = default_plan((16, 16, 16, 16))
    peak = simulator.peak_memory_bytes(plan, simulator.simulate(plan))
    expected = graph.held_bytes + graph.param_bytes + 16 * graph.saved_bytes_per_sample
    assert list(peak) == [pytest.approx(expected, rel=1e-9)] * 4
    assert graph.held_bytes >= 2 * graph.param_bytes
    assert math.isfinite(peak.max())


def test_the_measured_step_sets_the_sum_of_the_ops(graph):
    """Ops measured with probes add up to half of what the step takes without: each is given twice its time."""
    stated, slower = make_profile(graph, MIXED4), make_profile(graph, MIXED4, slower=2.0)
    ranks = tuple(
        dataclasses.replace(rank, ops=probed.ops) for rank, probed in zip(slower.ranks, stated.ranks, strict=True)
    )
    mended = simulator_of(graph, MIXED4, [dataclasses.replace(slower, ranks=ranks)])
    assert mended.step_s(PLAN) == pytest.approx(simulator_of(graph, MIXED4, [slower]).step_s(PLAN), rel=0.01)
