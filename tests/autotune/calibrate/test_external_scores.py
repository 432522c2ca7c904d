"""Scores on measurements of others, and the program that writes them."""

from __future__ import annotations

import json
import sys

import pytest

from autotune.calibrate.fit_steps import Measured
from autotune.results.imports.step_rows import StepRow
from tests.autotune.calibrate.test_fit_steps import MODEL, rows_of
from tests.benchmarks import external
from tests.benchmarks.external_scores import Pair, choices, naive, summary


def pair(placement, measured_s, predicted_s, samples=8):
    return Pair(row=StepRow(placement=placement, samples=samples, step_s=measured_s), predicted_s=predicted_s)


def test_errors_of_rows():
    found = summary([pair((1,), 1.0, 1.1), pair((2,), 2.0, 2.0), pair((4,), 4.0, 2.0)])
    assert found["median_error"] == pytest.approx(0.1)
    assert found["worst_error"] == pytest.approx(0.5)
    assert (found["rows"], found["rank_correlation"]) == (3, pytest.approx(0.866, abs=0.01))


def test_regret_of_the_first_ranked_and_of_the_best_of_two():
    """Predicted fastest: 50 % slower than the best, which is ranked second."""
    cell = [pair((4,), 3.0, 1.0), pair((2, 2), 2.0, 1.1), pair((1, 1, 2), 4.0, 1.2)]
    alone = [pair((8,), 1.0, 9.0)]  # no alternative
    found = choices(cell + alone)
    assert found["cells"] == 1
    assert found["regret_of_first"] == pytest.approx(0.5)
    assert found["regret_of_best_of_two"] == 0.0
    assert found["regret_of_any"] == pytest.approx(0.5)


def test_the_naive_model_is_a_line_and_a_ring():
    rows = [
        StepRow(
            placement=p, samples=b, step_s=0.1 + 0.01 * b + 2 * (sum(p) - 1) * 0.02 + 2 * (sum(p) - 1) / sum(p) * 0.3
        )
        for p, b in (((1, 1), 4), ((1, 1, 1, 1), 8), ((2, 2), 4))
    ]
    alone = [StepRow(placement=(1,), samples=b, step_s=0.1 + 0.01 * b) for b in (4, 8)]
    (predict,) = naive([Measured(name="net", rows=(*alone, *rows))])
    assert predict(StepRow(placement=(4, 4), samples=16, step_s=1)) == pytest.approx(
        0.1 + 0.16 + 14 * 0.02 + 1.75 * 0.3
    )
    assert predict(StepRow(placement=(1,), samples=6, step_s=1)) == pytest.approx(0.16)


def test_the_program_writes_errors_and_no_data(tmp_path, monkeypatch, capsys):
    data = tmp_path / "data" / "source"
    data.mkdir(parents=True)
    lines = [f"{''.join(map(str, row.placement))},{row.samples},{row.step_s}" for row in rows_of(MODEL, noise=0.02)]
    (data / "net-here.csv").write_text("\n".join(["placement,local_bsz,step_time", *lines]))
    (data / "broken-here.csv").write_text("placement,local_bsz,step_time\n11,8,1\n")
    (data / "chain.txt").write_text(
        "n1 -- A -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=4\n"
        "n2 -- B -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=4\n\tn1 -- n2\n"
    )
    (data / "other.txt").write_text("something else")
    kept = tmp_path / "kept" / "external.json"
    monkeypatch.setattr(sys, "argv", ["external", str(tmp_path / "data"), "--quick", "--kept", str(kept)])
    assert external.main() == 0
    text = kept.read_text()
    found = json.loads(text)
    (source,) = found["steps"]
    assert source["source"] == "source, here"
    assert source["all"]["simulator"]["median_error"] < 0.06
    assert "measure one GPU alone" in source["failed"]["broken"]
    assert [graph["ops"] for graph in found["graphs"]] == [2]
    assert found["graphs"][0]["ddp_predicted_s"] >= found["graphs"][0]["plan_predicted_s"]
    assert found["not_read"] == ["other.txt"]
    assert str(tmp_path) not in text
    assert not any(f"{row.step_s}" in text for row in rows_of(MODEL, noise=0.02))
    assert "| net |" in capsys.readouterr().out
