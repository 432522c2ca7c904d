"""`autotune provision` from the outside: the contract of its JSON, what it shows, its exit codes."""

from __future__ import annotations

import json

import pytest

from autotune.cli.main import main
from tests.autotune.provision.test_problem_file import GOOD, changed


@pytest.fixture
def file(tmp_path):
    def write(data=GOOD, name="problem.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return write


def run(capsys, *arguments):
    code = main(["provision", *arguments])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if "--json" in arguments and not code else printed.out, printed.err


def test_the_answer_has_what_the_contract_says(file, capsys):
    code, answer, _ = run(capsys, file(), "--json")
    assert code == 0
    contract = ["assignment", "units", "stages", "throughput", "cost", "proven", "method", "seconds"]
    assert list(answer)[:8] == contract
    assert (answer["assignment"], answer["proven"], answer["method"]) == (["cpu", "cpu"], True, "exact")
    assert answer["units"] == {"cpu": 1, "gpu": 0}
    assert answer["throughput"] == pytest.approx(1 / 3e-3)
    assert answer["cost"] == pytest.approx(1e6 * 3e-3 / 3600 * 0.3)
    assert answer["stages"][0]["layers"] == ["a", "b"]


def test_a_floor_on_the_command_line_replaces_that_of_the_file(file, capsys):
    _, answer, _ = run(capsys, file(), "--min-throughput", "2000", "--examples", "5e5", "--json")
    assert answer["throughput"] >= 2000
    assert answer["examples"] == 5e5


def test_stages_methods_and_proof_are_shown(file, capsys):
    code, shown, _ = run(capsys, file(), "--method", "all", "--time", "5")
    assert code == 0
    for words in ("the least possible, proven", "brute-force", "first-layer-cpu", "alpha", "per million examples"):
        assert words in shown


def test_the_front_is_a_picture_a_table_and_a_page(file, capsys, tmp_path):
    page = tmp_path / "front.html"
    code, shown, _ = run(capsys, file(), "--front", "0.5", "--html", str(page))
    assert code == 0
    assert "●" in shown
    assert "examples/s" in shown
    assert page.read_text().count("<circle") == shown.count("proven")
    _, document, _ = run(capsys, file(), "--front", "0.5", "--json")
    assert len(document["front"]) == shown.count("proven")


def test_a_budget_buys_throughput(file, capsys):
    _, answer, _ = run(capsys, file(), "--budget", "0.5", "--json")
    assert answer["cost"] <= 0.5
    assert answer["throughput"] > 1 / 3e-3
    code, _, error = run(capsys, file(), "--budget", "0.1")
    assert (code, "costs 0.25" in error) == (3, True)


def test_a_floor_that_cannot_be_met_is_exit_3_and_says_by_how_much(file, capsys):
    data = changed(types__0__limit=2, min_throughput=1000)
    code, _, error = run(capsys, file(data))
    assert code == 3
    for words in ("min_throughput is 1000", "at most", "% less", "cpu 2, gpu 4", "lower min_throughput"):
        assert words in error
    code, _, error = run(capsys, file(changed(types__0__limit=0, types__1__limit=0)))
    assert (code, "limit 0: cpu, gpu" in error) == (3, True)
    code, _, error = run(capsys, file(), "--method", "accelerator-only")
    assert (code, "use --method exact" in error) == (3, True)


def test_prices_of_a_list_replace_those_of_the_file(file, capsys):
    prices = file("date = 2026-01-31\n[price.small]\nper_hour = 9\n", "prices.toml")
    _, answer, _ = run(capsys, file(), "--prices", prices, "--price-of", "cpu=small", "--json")
    assert answer["types"][0]["price_per_hour"] == 9
    assert "2026-01-31" in answer["source"]["prices"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--price-of", "cpu=small"], "--prices FILE"),
        (["--limit", "tpu=3"], "'tpu'"),
        (["--limit", "cpu"], "TYPE=N"),
        (["--limit", "cpu=-1"], "TYPE=N"),
        (["--budget", "-1"], "--budget is -1"),
        (["--time", "nan"], "--time is nan"),
        (["--budget", "1", "--method", "rl"], "--method rl"),
        (["--html", "x.html"], "add --front"),
        (["--workload", "mlp"], "one of the two"),
        (["--set", "a=b"], "needs --workload"),
    ],
)
def test_bad_options_are_exit_2(file, capsys, options, words):
    code, _, error = run(capsys, file(), *options)
    assert (code, words in error) == (2, True), error


def test_without_a_problem_both_ways_are_named(capsys):
    code, _, error = run(capsys)
    assert (code, "FILE.json, or --workload" in error) == (2, True)


def test_a_bad_file_is_one_error(file, capsys):
    code, out, error = run(capsys, file(changed(examples=-1)))
    assert (code, out) == (2, "")
    assert error.startswith("autotune: error: ")
    assert error.count("\n") == 1
