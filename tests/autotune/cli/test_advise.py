"""`autotune advise` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli.main import main

PRICED = """
emulation = "paced"
[device.fast]
flops = "2 GFLOP/s"
memory = "1 GiB"
price_per_hour = 2.0
busy_power = "200 W"
idle_power = "50 W"
[device.slow]
flops = "0.05 GFLOP/s"
memory = "1 GiB"
price_per_hour = 1.0
busy_power = "100 W"
idle_power = "20 W"
[[host]]
name = "host0"
devices = ["fast"]
uplink = "1 Gbit/s"
downlink = "1 Gbit/s"
[[host]]
name = "host1"
devices = ["slow"]
uplink = "1 Gbit/s"
downlink = "1 Gbit/s"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "priced.toml"
    path.write_text(PRICED)
    return str(path)


def run(capsys, tmp_path, *arguments):
    code = main(["advise", "--workload", "digits", "--results", str(tmp_path), "--quiet", *arguments])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if "--json" in arguments and not code else printed.out, printed.err


def test_a_second_fast_device_is_worth_it_and_a_faster_switch_is_not(capsys, tmp_path, cluster):
    asked = ("--add", "fast", "--what-if", "bandwidth*10", "--remove", "host0", "--replace", "host1:fast")
    code, answer, _ = run(capsys, tmp_path, "--cluster", cluster, "--json", *asked)
    assert code == 0
    found = {row["change"]: row for row in answer["changes"]}
    assert next(iter(found)) == ""
    assert {change: row["verdict"] for change, row in found.items()} == {
        "": None,
        "add=fast": "worth it",
        "replace=host1:fast": "worth it",
        "bandwidth*10": "no difference",
        "remove=host0": "slower",
    }
    best = found["add=fast"]
    assert best["times_low"] < best["times"] < best["times_high"]
    assert best["times"] == pytest.approx(found[""]["forecast"]["step_s"] / best["forecast"]["step_s"])
    assert "computes for" in best["limited_by"]


def test_a_slow_old_machine_is_left_out_and_costs_nothing(capsys, tmp_path, cluster):
    code, answer, _ = run(capsys, tmp_path, "--cluster", cluster, "--subsets", "--json")
    assert code == 0
    assert {subset["devices"][0] for subset in answer["subsets"]} == {"fast", "slow"}
    assert len(answer["subsets"]) == 3
    code, out, _ = run(capsys, tmp_path, "--cluster", cluster, "--subsets")
    assert code == 0
    assert "cheapest per sample: fast" in out
    assert "least energy per sample: " in out
    assert "J per million" in out


def test_the_screen(capsys, tmp_path, cluster):
    code, out, _ = run(capsys, tmp_path, "--cluster", cluster, "--add", "fast")
    assert code == 0
    for words in ("as it is", "add=fast", "worth it", "per million", "predicted, not measured", "nine of ten"):
        assert words in out


def test_the_usual_changes_where_none_is_asked_for(capsys, tmp_path, cluster):
    code, answer, _ = run(capsys, tmp_path, "--cluster", cluster, "--json")
    assert code == 0
    assert {"add=fast", "add=slow", "remove=host1", "bandwidth*2"} < {row["change"] for row in answer["changes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--add", "fats"), "'fats': did you mean 'fast'?"),
        (("--remove", "host7"), "host7"),
        (("--replace", "host1"), "a host and a device"),
        (("--objective", "cost", "--cluster", "mixed4"), "price_per_hour"),
        (("--measure", "--cluster", "this-machine"), "leave --measure out"),
        (("--pool", "nowhere.toml"), "nowhere.toml"),
        (("--subsets", "--add", "fast"), "leave out --subsets"),
        (("--subsets", "--pool", "mixed4"), "leave out --subsets"),
    ],
)
def test_errors(capsys, tmp_path, cluster, arguments, message):
    code, _, err = run(capsys, tmp_path, *(() if "--cluster" in arguments else ("--cluster", cluster)), *arguments)
    assert code == 2
    assert message in err


def test_what_does_not_fit_and_what_makes_it_fit(capsys, tmp_path, cluster):
    Path(cluster).write_text(PRICED.replace('memory = "1 GiB"', 'memory = "16 KiB"', 1))
    code, answer, _ = run(capsys, tmp_path, "--cluster", cluster, "--remove", "host1", "--json")
    assert code == 0
    assert [row["verdict"] for row in answer["changes"]] == [None, "does not fit"]
    alone = ("--ranks", "1", "--add", "slow")
    code, answer, _ = run(capsys, tmp_path, "--cluster", cluster, *alone, "--pool", cluster, "--json")
    assert code == 0
    assert [row["verdict"] for row in answer["changes"]] == [None, "makes it fit"]


def test_nothing_fits(capsys, tmp_path, cluster):
    Path(cluster).write_text(PRICED.replace("1 GiB", "10 KiB"))
    for arguments in (("--add", "fast"), ("--subsets",)):
        code, _, err = run(capsys, tmp_path, "--cluster", cluster, *arguments)
        assert code == 3
        assert "use more devices" in err
