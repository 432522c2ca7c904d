from __future__ import annotations

from pathlib import Path

import pytest

from autotune.results.store.best import save_best
from tests.autotune.cli.commands import kept, make_study


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished study and its kept plan; only read."""
    folder = tmp_path_factory.mktemp("results")
    make_study(folder)
    save_best(folder, kept())
    return folder


@pytest.fixture(autouse=True)
def outside_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "RANK", "WORLD_SIZE", "AUTOTUNE_RESULTS"):
        monkeypatch.delenv(name, raising=False)
