"""Step models: what they predict, and what fits to measured steps find."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from autotune.calibrate.fit_steps import Measured, calibration_rows, fit_models
from autotune.calibrate.step_model import NOMINAL_BYTES, NUM_PARTS, Predictions, StepModel
from autotune.results.imports.imported import imported_fit
from autotune.results.imports.step_rows import KINDS, ONE_GPU, StepRow, parse_placement, read_steps
from autotune.workloads.errors import SpecError
from tests.autotune.jobs.predictions import run

MODEL = StepModel(
    name="net",
    device="gpu",
    compute=imported_fit([(8, 0.1), (32, 0.25)]),
    overlap=0.6,
    nic_bytes_per_s=NOMINAL_BYTES / 0.2,
    fabric_bytes_per_s=NOMINAL_BYTES / 0.04,
    slowdown=0.02,
    nic_loss=0.05,
    pair_loss=0.3,
)
PLACEMENTS = [(1,), (2,), (4,), (1, 1), (1, 1, 1), (1, 1, 1, 1), (1, 2), (2, 2), (4, 4), (1, 2, 3), (4, 4, 4, 4)]


def closed_form_s(model, placement, samples):
    """Forward, then backward and the sums behind it, in parts of equal size: the slower of the two decides."""
    size, most = sum(placement), max(placement)
    compute_s = model.compute.seconds(samples) * (1 + model.slowdown * (most - 1))
    if size == 1:
        return compute_s
    speed = model.fabric_bytes_per_s
    if len(placement) > 1:
        pair = 1 + model.pair_loss if len(placement) == 2 else 1.0
        speed = min(speed, model.nic_bytes_per_s / (1 + model.nic_loss * (most - 1)) / pair)
    sums_s = 2 * (size - 1) / size * model.param_bytes / speed
    backward_s = model.overlap * compute_s
    behind_s = max(backward_s + sums_s / NUM_PARTS, backward_s / NUM_PARTS + sums_s)
    return (1 - model.overlap) * compute_s + behind_s


def rows_of(model, noise=0.0, seed=0):
    draw, predictions = random.Random(seed), Predictions(model)
    return [
        StepRow(
            placement=placement,
            samples=samples,
            step_s=predictions.step_s(placement, samples) * draw.uniform(1 - noise, 1 + noise),
        )
        for placement in PLACEMENTS
        for samples in (8, 12, 16, 24, 32)
    ]


def errors(model, rows):
    predictions = Predictions(model)
    return sorted(abs(predictions.step_s(row.placement, row.samples) / row.step_s - 1) for row in rows)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("samples", [8, 32, 200])
def test_the_simulator_predicts_the_closed_form(placement, samples):
    assert Predictions(MODEL).step_s(placement, samples) == pytest.approx(
        closed_form_s(MODEL, placement, samples), rel=1e-9
    )


def test_two_rows_of_each_kind_determine_the_others():
    rows = rows_of(MODEL)
    chosen = calibration_rows(rows)
    assert len(chosen) == 2 * len(KINDS)
    (found,) = fit_models([Measured(name="net", rows=tuple(chosen))])
    others = [row for row in rows if row not in chosen]
    assert errors(found, others)[len(others) // 2] < 0.03
    assert errors(found, others)[-1] < 0.15


def test_noise_of_rows_is_not_multiplied():
    rows = rows_of(MODEL, noise=0.03)
    (found,) = fit_models([Measured(name="net", rows=tuple(calibration_rows(rows)))])
    assert errors(found, rows)[len(rows) // 2] < 0.06


def test_models_of_one_cluster_share_its_losses():
    other = replace(MODEL, name="wide", nic_bytes_per_s=MODEL.nic_bytes_per_s / 4, overlap=0.3)
    measured = [Measured(name=one.name, rows=tuple(calibration_rows(rows_of(one)))) for one in (MODEL, other)]
    found = fit_models(measured)
    assert found[0].nic_loss == found[1].nic_loss
    assert found[0].pair_loss == found[1].pair_loss > 0
    assert found[0].nic_bytes_per_s > 2 * found[1].nic_bytes_per_s


def test_two_measured_steps_are_enough_for_two_hosts():
    """One GPU alone, and the same with two hosts: the rest follows from expectations."""
    alone, pair = (StepRow(placement=p, samples=8, step_s=s) for p, s in (((1,), 0.1), ((1, 1), 0.3)))
    (found,) = fit_models([Measured(name="net", rows=(alone, pair))])
    assert Predictions(found).step_s((1, 1), 8) == pytest.approx(0.3, rel=0.02)
    assert Predictions(found).step_s((1,), 8) == pytest.approx(0.1)
    assert found.overlap == pytest.approx(2 / 3, abs=0.05)


def test_the_rule_takes_the_ends_of_each_kind():
    rows = rows_of(MODEL)
    chosen = {(row.placement, row.samples) for row in calibration_rows(rows)}
    assert chosen == {
        ((1,), 8),
        ((1,), 32),
        ((2,), 8),
        ((4,), 32),
        ((1, 1), 8),
        ((1, 1, 1, 1), 32),
        ((1, 2), 8),
        ((4, 4, 4, 4), 32),
    }


def test_without_a_step_of_one_gpu_nothing_can_be_fitted():
    rows = tuple(row for row in rows_of(MODEL) if row.kind != ONE_GPU)
    with pytest.raises(SpecError, match="measure one GPU alone"):
        fit_models([Measured(name="net", rows=rows)])


def written(tmp_path, rows, head="placement,local_bsz,step_time"):
    lines = [head, *(f"{'+'.join(map(str, r.placement))},{r.samples},{r.step_s}" for r in rows)]
    (tmp_path / "steps.csv").write_text("\n".join(lines))
    return str(tmp_path / "steps.csv")


def test_measured_steps_become_files_that_predict_like_the_fit(tmp_path, capsys):
    rows = calibration_rows(rows_of(MODEL))
    (model,) = fit_models([Measured(name="steps", rows=tuple(rows))])
    code, out, err = run(
        capsys,
        "import",
        written(tmp_path, rows),
        "--output",
        str(tmp_path),
        "--placement",
        "2+2",
        "--global-batch",
        "64",
        "--json",
    )
    assert code == 0, err
    files = json.loads(out)
    code, out, err = run(
        capsys,
        *("simulate", "--workload", files["graph"], "--profile", files["profile"], "--cluster", files["cluster"]),
        *("--plan", "default", "--json", "--results", str(tmp_path)),
    )
    assert code == 0, err
    assert json.loads(out)["step_s"] == pytest.approx(Predictions(model).step_s((2, 2), 16), rel=1e-3)


def test_rows_may_state_hosts_and_gpus(tmp_path):
    (tmp_path / "steps.csv").write_text("num_nodes,num_replicas,local_bsz,step_time_ms,sync_time_ms\n2,8,16,200,50\n")
    (row,) = read_steps(tmp_path / "steps.csv")
    assert (row.placement, row.samples, row.step_s, row.sync_s) == ((4, 4), 16, 0.2, 0.05)


@pytest.mark.parametrize(("text", "counts"), [("1", (1,)), ("144", (1, 4, 4)), ("16+16", (16, 16)), ("8-8", (8, 8))])
def test_placements(text, counts):
    assert parse_placement(text) == counts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("placement,local_bsz,step_time\n1a,8,0.1\n", "row 2, column 'placement'"),
        ("placement,local_bsz,step_time\n104,8,0.1\n", "one digit from 1 per host"),
        ("placement,local_bsz,step_time\n11,8.5,0.1\n", "row 2, column 'local_bsz'"),
        ("placement,local_bsz,step_time\n11,8,0\n", "row 2: a step of 0 seconds"),
        ("placement,local_bsz,step_time\n11,8,-1\n", "row 2, column 'step_time'"),
        ("num_nodes,num_replicas,local_bsz,step_time\n2,3,8,1\n", "3 GPUs on 2 hosts"),
    ],
)
def test_wrong_rows_are_refused(tmp_path, text, says):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(SpecError) as refused:
        read_steps(tmp_path / "steps.csv")
    assert says in str(refused.value)
