"""Files of problems: what is read, and what is refused with field, value, rule and remedy."""

from __future__ import annotations

import copy
import json

import pytest

from autotune.provision.problem_file import MAX_FILE_BYTES, problem_of, read_problem
from autotune.workloads.errors import SpecError
from tests.benchmarks.provision_networks import FOLDER, NETWORKS, network

GOOD = {
    "types": [{"name": "cpu", "price_per_hour": 0.3}, {"name": "gpu", "price_per_hour": 2.5, "limit": 4}],
    "layers": [
        {"name": "a", "compute_s": {"cpu": 1e-3, "gpu": 1e-4}, "transfer_s": {"cpu": 1e-5, "gpu": 1e-5}},
        {"name": "b", "compute_s": {"cpu": 2e-3, "gpu": None}, "transfer_s": {"cpu": 0, "gpu": 0}},
    ],
    "alpha": {"cpu": 0.95, "gpu": 0.9},
    "beta": {"cpu": 0.9, "gpu": 1},
    "examples": 1e6,
    "min_throughput": 100,
}


def changed(**edits):
    data = copy.deepcopy(GOOD)
    for path, value in edits.items():
        *parents, last = path.split("__")
        at = data
        for key in parents:
            at = at[int(key) if key.isdigit() else key]
        if value is KeyError:
            del at[last]
        else:
            at[int(last) if last.isdigit() else last] = value
    return data


def test_a_problem_is_read():
    problem = problem_of(GOOD)
    assert problem.names == ("cpu", "gpu")
    assert problem.types[1].limit == 4
    assert problem.layers[1].compute_s == (2e-3, float("inf"))
    assert problem.slowest_s == 0.01


def test_without_a_floor_any_throughput_will_do():
    assert problem_of(changed(min_throughput=KeyError)).min_throughput == 0


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"types__0__price_per_hour": -1}, ["price_per_hour", "-1", "from 0"]),
        ({"types__0__price_per_hour": "0.3"}, ["types[0].price_per_hour", "'0.3'", "a number"]),
        ({"types__0__price_per_hour": float("nan")}, ["price_per_hour", "nan"]),
        ({"types__0__price_per_hour": 10**400}, ["larger units"]),
        ({"types__0__price_per_hour": KeyError}, ["'cpu'", "price_per_hour", "--prices"]),
        ({"types__1__limit": -1}, ["limit", "-1", "from 0"]),
        ({"types__1__limit": 1.5}, ["limit", "1.5", "int"]),
        ({"types__1__limit": True}, ["limit", "True"]),
        ({"types__1__name": "cpu"}, ["types[1].name", "'cpu'", "differ"]),
        ({"types__1__name": ""}, ["types[1].name", "give every type a name"]),
        ({"types": []}, ["types", "0 entries", "1 to 64"]),
        ({"layers": []}, ["layers", "0 entries"]),
        ({"layers__0__name": "b"}, ["layers[1].name", "'b'", "differ"]),
        ({"layers__0__compute_s__gpu": KeyError}, ["layers[0].compute_s", "'gpu'", "add seconds"]),
        ({"layers__0__compute_s__tpu": 1}, ["'tpu'", "layers[0].compute_s"]),
        ({"layers__0__compute_s__cpu": -1e-3}, ["layers[0].compute_s.cpu", "-0.001"]),
        ({"layers__0__transfer_s__cpu": float("inf")}, ["layers[0].transfer_s.cpu", "inf"]),
        ({"layers__1__compute_s__cpu": None}, ["layers[1].compute_s", "'b'", "at least one"]),
        ({"layers__0": 3}, ["layers[0]", "table"]),
        ({"alpha__cpu": 1.2}, ["alpha.cpu", "1.2", "from 0", "to 1"]),
        ({"alpha__cpu": KeyError}, ["alpha", "'cpu'", "scaling.cpu.compute"]),
        ({"beta__tpu": 1}, ["'tpu'", "beta"]),
        ({"examples": 0}, ["examples", "0", "above 0"]),
        ({"examples": KeyError}, ["'examples'"]),
        ({"min_throughput": -5}, ["min_throughput", "-5"]),
        ({"min_troughput": 5}, ["min_troughput", "min_throughput"]),
    ],
)
def test_a_bad_value_is_named_with_its_rule(edit, words):
    with pytest.raises(SpecError) as caught:
        problem_of(changed(**edit), "file.json")
    for word in ["file.json", *words] if "10**400" not in str(edit) else words:
        assert word in str(caught.value)


def test_a_plan_that_takes_no_time_is_refused():
    data = changed(layers__0__compute_s={"cpu": 0, "gpu": 1}, layers__1__compute_s={"cpu": 0, "gpu": 1})
    with pytest.raises(SpecError, match="no time at all"):
        problem_of(data)


@pytest.mark.parametrize("data", [[], 3, None, "x", {"types": {}}])
def test_another_document_is_refused(data):
    with pytest.raises(SpecError):
        problem_of(data, "file.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 200_000, "too deep"),
        (b" " * (MAX_FILE_BYTES + 1), "16 MiB"),
    ],
)
def test_a_file_that_is_no_problem_is_refused(tmp_path, content, words):
    path = tmp_path / "problem.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=words):
        read_problem(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(SpecError, match="cannot read"):
            read_problem(path)


def test_too_many_layers_are_refused():
    layer = GOOD["layers"][0]
    data = changed(layers=[{**layer, "name": f"l{at}"} for at in range(1001)])
    with pytest.raises(SpecError, match="1001 entries: give 1 to 1,000"):
        problem_of(data)


def test_shares_are_fitted_where_times_are_measured():
    rows = [[k, 2.0 * (1 - 0.8 + 0.8 / k)] for k in (1, 2, 4)]
    data = changed(alpha__cpu=KeyError, scaling={"cpu": {"compute": rows}})
    kind = problem_of(data).types[0]
    assert kind.alpha == pytest.approx(0.8)
    assert kind.alpha_error == pytest.approx(0.0, abs=1e-12)
    assert kind.beta_error is None


@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_networks_are_what_their_program_makes(name):
    path = FOLDER / f"{name}.json"
    assert json.loads(path.read_text()) == network(name)
    assert read_problem(path).num_layers == len(NETWORKS[name]())
