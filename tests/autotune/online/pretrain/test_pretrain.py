"""Pre-training on a few jobs: weights, grades and card, from stored jobs again the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.online.meta_network import CARD, SHIPPED, MetaNetwork
from autotune.online.pretrain.__main__ import make_weights
from autotune.online.pretrain.cases import Settings, training_data
from autotune.online.pretrain.grading import OURS, POPULATIONS, scorers


def few(folder: Path) -> Settings:
    return Settings(kept=folder, num_jobs=8, num_tried=4, chunk_jobs=4, epochs=1, graded_jobs=3, graded_tried=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrain")
    make_weights(few(folder / "kept"), folder / "weights")
    return folder


def test_weights_are_read_as_the_shipped_ones_are(made: Path) -> None:
    network = MetaNetwork.of_bytes((made / "weights" / SHIPPED).read_bytes(), SHIPPED)
    assert set(network.tensors) == set(MetaNetwork.shipped().tensors)


def test_the_card_has_grades_of_every_population_and_scorer(made: Path) -> None:
    card = json.loads((made / "weights" / CARD).read_text(encoding="utf-8"))
    assert list(card["grades"]) == list(POPULATIONS)
    for grades in card["grades"].values():
        assert list(grades) == list(scorers(MetaNetwork.cold(), []))
        assert all(0 <= entry["mean_regret"] <= 1 for entry in grades.values())
        assert grades["the simulator, true links"]["mean_regret"] == 0
        assert 0 <= grades[OURS]["within_one_spread"] <= 1
    assert card["data"]["runs"] == 8


def test_stored_jobs_give_the_same_data_and_weights(made: Path, tmp_path: Path) -> None:
    reports: list[str] = []
    data = training_data(few(made / "kept"), reports.append)
    assert reports == ["4 of 8 jobs", "8 of 8 jobs"]
    assert len(data.measured) == len(data.windows) == len(data.rows)
    make_weights(few(made / "kept"), tmp_path)
    assert (tmp_path / SHIPPED).read_bytes() == (made / "weights" / SHIPPED).read_bytes()


def test_grading_again_changes_nothing_but_the_date(made: Path) -> None:
    before = json.loads((made / "weights" / CARD).read_text(encoding="utf-8"))
    make_weights(few(made / "kept"), made / "weights", again=True)
    after = json.loads((made / "weights" / CARD).read_text(encoding="utf-8"))
    assert {**before, "date": ""} == {**after, "date": ""}


def test_the_shipped_card_names_the_scorers_of_this_version() -> None:
    from importlib.resources import files

    card = json.loads((files("autotune.online") / "weights" / CARD).read_text(encoding="utf-8"))
    for grades in card["grades"].values():
        assert list(grades) == list(scorers(MetaNetwork.cold(), []))
