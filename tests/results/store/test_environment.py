"""What is kept about the machine: only what is on the list, nothing secret."""

from __future__ import annotations

import json
import os
import platform
import socket
from importlib import metadata
from pathlib import Path

import pytest

from autotune.results.store import environment
from autotune.results.store.environment import PACKAGES, available_cores, describe_environment, processor_name

ALLOWED = {"python", "system", "processor", "cores", *PACKAGES}
SECRET = "hunter2-do-not-keep"


def test_only_what_is_on_the_list_is_kept() -> None:
    assert set(describe_environment()) <= ALLOWED
    assert {"python", "system", "processor", "cores", "torch", "optuna"} <= set(describe_environment())


def test_nothing_of_the_environments_variables_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe_environment()
    for name in ("API_TOKEN", "PASSWORD", "python", "system", "PYTHONPATH_EXTRA", "torch"):
        monkeypatch.setenv(name, SECRET)
    assert describe_environment() == before


def test_neither_the_hosts_name_nor_any_folder_is_kept() -> None:
    kept = json.dumps(describe_environment())
    for private in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert private not in kept


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert set(describe_environment()) == {"python", "system", "processor", "cores"}


def test_every_fact_is_text() -> None:
    assert all(isinstance(value, str) and value for value in describe_environment().values())


def test_versions_are_those_installed() -> None:
    assert describe_environment()["torch"] == metadata.version("torch")
    assert describe_environment()["python"] == platform.python_version()


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5, 6}, raising=False)
    assert available_cores() == 3


def test_a_processor_without_a_name_is_called_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_path: Path, encoding: str = "") -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert processor_name() in (platform.processor(), platform.machine())
    assert processor_name()
