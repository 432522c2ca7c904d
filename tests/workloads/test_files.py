"""Files from outside have bounds, and what is written is whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune.workloads.block_file import block_graph, check_slots
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.files import is_path_name, json_of, read_text, replace_file, safe_name, shown, visible
from autotune.workloads.serial import from_data

ESCAPE = "\x1b]52;c;cHduZWQ=\x07"


def test_a_file_above_the_bound_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with file.open("wb") as sparse:
        sparse.truncate(2**33)
    with pytest.raises(OSError, match="at most 256 MiB"):
        read_text(file)


@pytest.mark.parametrize("name", ["/dev/zero", "folder", "a\0b", "pipe"])
def test_what_is_no_regular_file_is_an_os_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    if name == "pipe":
        os.mkfifo("pipe")
        held = os.open("pipe", os.O_RDWR)  # a writer, so that opening it does not wait
    with pytest.raises(OSError) as refused:  # noqa: PT011 - any, with words
        read_text(name)
    assert refused.value.strerror
    if name == "pipe":
        os.close(held)


@pytest.mark.parametrize("text", ["NaN", "[1, -Infinity]", "1e999", "9" * 30, "[" * 100_000, '{"a": 1', ""])
def test_json_that_is_no_finite_data_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        json_of(text)


def test_numbers_are_read_as_json_has_them() -> None:
    assert json_of('{"a": [1, -2, 2.5e3, 9007199254740993]}') == {"a": [1, -2, 2500.0, 9007199254740993]}


def test_an_error_quotes_little_and_nothing_that_a_terminal_obeys() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10**6, [ESCAPE] * 10**5, deep, {ESCAPE: 1}):
        assert len(shown(value)) < 600
        assert "\x1b" not in shown(value)


def test_text_of_files_reaches_no_terminal_as_an_escape_sequence() -> None:
    assert visible(f"vgg{ESCAPE}") == "vgg\\x1b]52;c;cHduZWQ=\\x07"
    assert visible("zwei\nZeilen\tπ") == "zwei\nZeilen\tπ"
    assert "\x1b" not in from_data(str, ESCAPE, "a plan")
    assert list(from_data(dict[str, int], {ESCAPE: 1}, "a plan")) == [visible(ESCAPE)]


def test_a_cluster_file_with_an_escape_sequence_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('name = "mixed\\u001b[2J"\n[device.a]\n[[host]]\ndevices = ["a"]\n', encoding="utf-8")
    with pytest.raises(SpecError, match="control characters"):
        load_cluster(str(file))


@pytest.mark.parametrize("name", ["vgg", "vgg,lr=0.1", "2024-01 größer", "a.b@c"])
def test_names_that_become_files(name: str) -> None:
    assert is_path_name(name)
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-rf", "a/b", "a?b", "100%", "a\0", "x" * 151, "a\nb", ESCAPE, "a:b", "$HOME"]
)
def test_names_that_do_not(name: str) -> None:
    assert not is_path_name(name)
    assert is_path_name(safe_name(name))


def test_long_names_differ_where_their_ends_do() -> None:
    assert safe_name("x" * 200 + "1") != safe_name("x" * 200 + "2")


def test_a_file_is_replaced_whole_with_the_permissions_of_the_umask(tmp_path: Path) -> None:
    file, before = tmp_path / "best.json", os.umask(0o077)
    try:
        replace_file(file, "old")
        replace_file(file, "new")
    finally:
        os.umask(before)
    assert file.read_text(encoding="utf-8") == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    precious, file = tmp_path / "precious", tmp_path / "best.json"
    precious.write_text("mine", encoding="utf-8")
    file.symlink_to(precious)
    replace_file(file, "new")
    assert precious.read_text(encoding="utf-8") == "mine"
    assert not file.is_symlink()


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "best.json"
    replace_file(file, "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, "new")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "table",
    [
        'drift = [{host = "*", bandwidth = [1.0, 0.5], from = 0, until = 1e9, every = 1e-9}]',
        'walk = [{host = "*", bandwidth = [1.0, 0.5], seed = 1, until = 1e300, every = 1e-300}]',
        'change = [{host = "*", bandwidth = nan, at = 1}]',
        'change = [{host = "*", bandwidth = 0.5, at = inf}]',
    ],
)
def test_a_small_scenario_does_not_become_a_large_one(table: str, tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(table, encoding="utf-8")
    with pytest.raises(SpecError):
        load_scenario(str(file))


@pytest.mark.parametrize(
    "hosts", ['devices = ["999999999 x a"]', 'devices = ["a"]\ncount = 1000000000', 'devices = ["99999999999 x a"]']
)
def test_a_small_cluster_file_does_not_become_a_large_cluster(hosts: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[device.a]\n[[host]]\nname = "h"\n{hosts}\n', encoding="utf-8")
    with pytest.raises(SpecError):
        load_cluster(str(file))


def test_a_small_block_file_does_not_become_a_large_schedule() -> None:
    with pytest.raises(SpecError, match="at most 4096"):
        block_graph({"devices": 10**9, "blocks": [{"name": "f", "devices": [0], "time": 1}]})
    graph = block_graph({"devices": 1, "blocks": [{"name": "f", "devices": [0], "time": 1}]})
    with pytest.raises(SpecError, match="1000000 micro-batches or fewer"):
        check_slots(graph, 4_000_000)
