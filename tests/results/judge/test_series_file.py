"""Every kind of file that holds times is read; everything else is one clear message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.results.judge.report import build_report
from autotune.results.judge.series import Run, Runs
from autotune.results.judge.series_file import Side, read_side
from autotune.results.store.record import BEST, DDP_DEFAULT, DDP_TUNED
from autotune.results.store.store import StudyStore, write_json
from autotune.workloads.errors import AutotuneError, SpecError
from autotune.workloads.serial import to_data
from tests.results import sample
from tests.results.judge.test_race import race

BENCHMARKS = {
    "machine_info": {"python_version": "3.12.1", "cpu": {"brand_raw": "AMD EPYC"}},
    "benchmarks": [
        {"fullname": "tests/benchmarks/test_x.py::test_split[4]", "stats": {"data": [1e-5, 2e-5], "median": 1.5e-5}},
        {"fullname": "tests/benchmarks/test_x.py::test_disk", "stats": {"median": 3e-4}},
    ],
}
RUNS = Runs(
    what="vgg on pair",
    label="emulated",
    runs=tuple(Run(series="a", round_number=number, steps_s=(0.1, 0.1, 0.1, 0.1)) for number in range(3)),
    environment={"torch": "2.13"},
)


def make_study(results: Path, study: str = "mine", cluster: str = "mixed4", *, finished: bool = True) -> Path:
    store = StudyStore(results / study / cluster)
    store.open_for_writing()
    store.write_info(sample.info())
    if finished:
        store.write_comparison(sample.comparison())
    store.close()
    return store.folder


def write(path: Path, data: Any) -> str:
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def names(side: Side) -> list[str]:
    return [series.name for series in side.series]


def test_a_study_by_its_name(tmp_path: Path) -> None:
    make_study(tmp_path)
    side = read_side("mine", tmp_path)
    assert side.source == "mine"
    assert names(side) == [contender.name for contender in sample.comparison().contenders]
    assert side.series[0].rounds_s == sample.comparison().contenders[0].rounds_s
    assert {series.group for series in side.series} == {"vgg on mixed4"}


def test_a_study_of_several_clusters_has_a_group_for_each(tmp_path: Path) -> None:
    make_study(tmp_path, cluster="mixed4")
    make_study(tmp_path, cluster="other")
    assert len(read_side("mine", tmp_path).series) == 2 * len(sample.comparison().contenders)


def test_a_study_by_its_folder_and_a_comparison_by_its_file(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    assert read_side(str(folder), tmp_path).series == read_side(str(folder / "comparison.json"), tmp_path).series


def test_a_comparison_that_was_moved_away_from_its_study(tmp_path: Path) -> None:
    write_json(tmp_path / "kept.json", sample.comparison())
    side = read_side(str(tmp_path / "kept.json"), tmp_path)
    assert names(side)[0] == DDP_DEFAULT
    assert side.series[0].group == ""


def test_a_race(tmp_path: Path) -> None:
    side = read_side(write(tmp_path / "race.json", to_data(race())), tmp_path)
    assert names(side) == [entrant.name for entrant in race().entrants]
    assert side.series[0].group == "vgg on mixed4"


def test_a_race_of_version_0_1_compares_with_one_of_this_version(tmp_path: Path) -> None:
    text = json.dumps(to_data(race())).replace(DDP_TUNED, "DDP tuned by hand")
    assert "DDP tuned by hand" in text
    side = read_side(write(tmp_path / "race.json", json.loads(text)), tmp_path)
    assert names(side) == [entrant.name for entrant in race().entrants]


def report(*, with_rounds: bool = False) -> dict[str, Any]:
    data = to_data(build_report(sample.info(), sample.records(), sample.comparison(), None))
    for row in data["comparison"]:
        row.pop("rounds_s", None)
        if with_rounds:
            row["rounds_s"] = [row["step_s"]] * 12
    return data | {"environment": {"torch": "2.13"}}


def test_a_report_holds_medians(tmp_path: Path) -> None:
    side = read_side(write(tmp_path / "report.json", report()), tmp_path)
    assert BEST in names(side)
    assert all(len(series.rounds_s) == 1 for series in side.series)
    assert side.environment == {"torch": "2.13"}


def test_a_report_with_rounds_and_several_reports_in_one_file(tmp_path: Path) -> None:
    other = report(with_rounds=True) | {"cluster": "uniform4"}
    side = read_side(write(tmp_path / "report.json", [report(with_rounds=True), other]), tmp_path)
    assert {series.group for series in side.series} == {"vgg on mixed4", "vgg on uniform4"}
    assert all(len(series.rounds_s) == 12 for series in side.series)


def test_a_pytest_benchmark_file(tmp_path: Path) -> None:
    side = read_side(write(tmp_path / "benchmarks.json", BENCHMARKS), tmp_path)
    assert [(one.name, one.rounds_s) for one in side.series] == [
        ("test_x.py::test_split[4]", (1e-5, 2e-5)),
        ("test_x.py::test_disk", (3e-4,)),
    ]
    assert side.environment == {"python": "3.12.1", "processor": "AMD EPYC"}


def test_a_file_of_runs(tmp_path: Path) -> None:
    side = read_side(write(tmp_path / "runs.json", to_data(RUNS)), tmp_path)
    assert side.series == RUNS.series()
    assert side.environment == {"torch": "2.13"}


BAD = {
    "empty": ("", "is empty"),
    "blank": (" \n", "is empty"),
    "cut short": ('{"contenders": [{"name"', "cut short"),
    "no JSON": ("hello", "no JSON"),
    "a number": ("3", "none of the files"),
    "a text": ('"contenders"', "none of the files"),
    "an empty list": ("[]", "none of the files"),
    "a foreign table": ('{"packages": []}', "none of the files"),
    "a list of foreign tables": ('[{"packages": []}]', "none of the files"),
    "nested too deep": ("[" * 200_000, "cut short"),
    "no contender": ('{"contenders": []}', "holds no measured times"),
    "contenders without rounds": ('{"contenders": [{"name": "x", "rounds_s": []}]}', "holds no measured times"),
    "a contender that is a number": ('{"contenders": [3]}', "without a name or without times"),
    "a contender without a name": ('{"contenders": [{"rounds_s": [1.0]}]}', "without a name"),
    "a time that is a text": ('{"contenders": [{"name": "x", "rounds_s": ["fast"]}]}', "has the time 'fast'"),
    "a time of zero": ('{"contenders": [{"name": "x", "rounds_s": [0]}]}', "has the time 0"),
    "a time below zero": ('{"contenders": [{"name": "x", "rounds_s": [-1.0]}]}', "has the time -1.0"),
    "a time that is no number": ('{"contenders": [{"name": "x", "rounds_s": [NaN]}]}', "has the time nan"),
    "an endless time": ('{"contenders": [{"name": "x", "rounds_s": [Infinity]}]}', "has the time inf"),
    "a time that is true": ('{"contenders": [{"name": "x", "rounds_s": [true]}]}', "has the time True"),
    "another schema": ('{"contenders": [], "schema": 99}', "has schema 99"),
    "a benchmark without times": ('{"machine_info": {}, "benchmarks": [{"fullname": "x"}]}', "without times"),
    "a run without steps": (
        '{"what": "x", "label": "y", "runs": [{"series": "a", "round_number": 0, "steps_s": []}]}',
        "without steps",
    ),
    "a run of zeros": (
        '{"what": "x", "label": "y", "runs": [{"series": "a", "round_number": 0, "steps_s": [0.0]}]}',
        "has the time 0.0",
    ),
    "runs with a misspelt key": ('{"what": "x", "label": "y", "runs": [{"seres": "a"}]}', "did you mean"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_compared_is_one_message(tmp_path: Path, name: str) -> None:
    text, words = BAD[name]
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        read_side(str(path), tmp_path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_what_is_no_text_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(SpecError, match="cannot read"):
        read_side(str(path), tmp_path)


@pytest.mark.parametrize("kind", ["comparison", "race", "report", "benchmarks", "runs"])
def test_a_file_cut_off_anywhere_never_crashes(tmp_path: Path, kind: str) -> None:
    data = {
        "comparison": to_data(sample.comparison()),
        "race": to_data(race()),
        "report": report(),
        "benchmarks": BENCHMARKS,
        "runs": to_data(RUNS),
    }[kind]
    text = json.dumps(data)
    path = tmp_path / "file.json"
    for end in range(0, len(text), max(1, len(text) // 97)):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(AutotuneError):
            read_side(str(path), tmp_path)


def test_a_study_without_a_comparison_is_refused_until_it_finishes(tmp_path: Path) -> None:
    make_study(tmp_path, finished=False)
    with pytest.raises(SpecError, match="has no comparison yet: let its sweep finish"):
        read_side("mine", tmp_path)


@pytest.mark.parametrize("spec", ["nothing.json", "no/such/file", "."])
def test_a_file_that_is_not_there_is_one_message(tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="no file"):
        read_side(spec, tmp_path)


def test_an_unknown_study_names_the_known_ones(tmp_path: Path) -> None:
    make_study(tmp_path)
    with pytest.raises(SpecError, match="known: mine"):
        read_side("yours", tmp_path)
