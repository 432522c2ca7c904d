"""The store: append-only lines that survive a kill, files replaced in one step, one writer at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.profilers.timeline import Counter, Span, Timeline
from autotune.results.store.record import DDP_TUNED, Role, StudyInfo, TrialRecord
from autotune.results.store.store import StudyStore, read_json, writable_folder, write_json
from autotune.workloads.errors import SpecError, StoreError
from autotune.workloads.files import safe_name
from autotune.workloads.serial import to_data
from tests.results import sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StudyStore]:
    made = StudyStore(tmp_path / "vgg" / "mixed4")
    made.open_for_writing()
    yield made
    made.close()


def trial(number: int) -> TrialRecord:
    return sample.trial(number, Role.SEARCH, sample.plan(), 0.25)


def lines(store: StudyStore) -> Path:
    return store.folder / "records.jsonl"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- records -----------------------------------------------------------------------------------------------------------


def test_a_new_study_has_no_records(store: StudyStore) -> None:
    assert store.records() == []
    assert store.comparison() is None
    assert not store.exists()


def test_records_come_back_as_they_were_in_the_order_they_were_written(store: StudyStore) -> None:
    written = sample.records()
    for record in written:
        store.append(record)
    assert StudyStore(store.folder).records() == written


def test_a_record_is_one_line_whatever_its_text(store: StudyStore) -> None:
    store.append(dataclasses.replace(trial(0), reason="line one\nline two\r\u2028 end"))
    store.append(trial(1))
    assert lines(store).read_bytes().count(b"\n") == 2
    assert store.records()[0].reason == "line one\nline two\\r\u2028 end", "control characters are shown, not obeyed"


def test_a_record_is_on_disk_when_append_returns(store: StudyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    sync = os.fsync

    def noting_fsync(fd: int) -> None:
        sync(fd)
        sizes.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    store.append(trial(0))
    assert sizes[0] == lines(store).stat().st_size  # and then the folder, which has a new file


# --- what others put into the folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["records.jsonl", "timelines", "search.db", "study.json"])
def test_a_link_in_a_received_folder_is_refused(store: StudyStore, name: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine, with a torn last line", encoding="utf-8")
    store.close()
    (store.folder / name).symlink_to(precious)
    with pytest.raises(StoreError, match="symbolic link"):
        store.open_for_writing()
    assert precious.read_text(encoding="utf-8") == "mine, with a torn last line"


def test_a_results_folder_is_its_owners_alone(tmp_path: Path) -> None:
    writable_folder(tmp_path / "results")
    assert (tmp_path / "results").stat().st_mode & 0o777 == 0o700


def test_what_a_kill_left_half_written_is_removed(store: StudyStore) -> None:
    left = store.folder / ".study.json.123-abcd.partial"
    left.write_text("{", encoding="utf-8")
    store.close()
    store.open_for_writing()
    assert not left.exists()


def test_a_record_that_does_not_fit_on_the_disk_is_an_error_and_no_half_line(
    store: StudyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(trial(0))
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StoreError, match="No space left on device: make room"):
            store.append(trial(1))
    store.append(trial(2))
    assert [record.number for record in store.records()] == [0, 2]


# --- what a kill leaves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 40, -2, -1])
def test_a_torn_last_line_is_ignored_by_readers_and_cut_by_the_next_writer(store: StudyStore, keep: int) -> None:
    """However much of the line got to disk: a byte, some, all but the brace, all but the newline."""
    store.append(trial(0))
    whole = lines(store).read_bytes()
    torn = (json.dumps(to_data(trial(1))) + "\n").encode()[:keep]
    lines(store).write_bytes(whole + torn)
    store.close()

    assert StudyStore(store.folder).records() == [trial(0)]
    assert lines(store).read_bytes() == whole + torn

    store.open_for_writing()
    assert lines(store).read_bytes() == whole
    store.append(trial(2))
    assert store.records() == [trial(0), trial(2)]


def test_a_first_line_that_is_torn_leaves_an_empty_study(store: StudyStore) -> None:
    lines(store).write_bytes(b'{"number": 0, "ro')
    store.close()
    store.open_for_writing()
    assert lines(store).read_bytes() == b""
    assert store.records() == []


@pytest.mark.parametrize(
    "damage",
    [b'{"number": 1, "ro', b"\x00\x00\x00\x00", b"", b"[]", b'{"number": 1}', b"\xff\xfe", b'{"state": []}'],
    ids=["torn", "zeros", "blank", "not a table", "fields missing", "not text", "wrong kind"],
)
def test_a_damaged_line_in_the_middle_is_an_error_that_names_file_and_line(store: StudyStore, damage: bytes) -> None:
    for number in range(3):
        store.append(trial(number))
    content = lines(store).read_bytes().split(b"\n")
    content[1] = damage
    lines(store).write_bytes(b"\n".join(content))
    with pytest.raises(StoreError) as caught:
        store.records()
    message = str(caught.value)
    assert message.startswith(f"{lines(store)}, line 2 is damaged (")
    assert message.endswith("restore it from a copy, or move the folder away to start anew")


def test_a_value_of_the_wrong_kind_in_a_line_is_damage_too(store: StudyStore) -> None:
    data = to_data(trial(0)) | {"state": ["complete"]}
    lines(store).write_text(json.dumps(data) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match="line 1 is damaged"):
        store.records()


# --- one writer --------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_while_the_first_holds_the_lock(store: StudyStore) -> None:
    second = StudyStore(store.folder)
    with pytest.raises(StoreError, match="is being written by another job: wait for it, or use --study NAME"):
        second.open_for_writing()
    second.close()


def test_a_refused_writer_does_not_touch_the_records(store: StudyStore) -> None:
    lines(store).write_bytes(b"half a li")
    second = StudyStore(store.folder)
    with pytest.raises(StoreError):
        second.open_for_writing()
    second.close()
    assert lines(store).read_bytes() == b"half a li"


def test_a_writer_in_another_process_is_refused_too(store: StudyStore) -> None:
    code = (
        "import sys; from pathlib import Path; from autotune.results.store.store import StudyStore\n"
        "StudyStore(Path(sys.argv[1])).open_for_writing()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "StoreError" in done.stderr


def test_a_study_can_be_read_while_it_is_written(store: StudyStore) -> None:
    store.append(trial(0))
    assert StudyStore(store.folder).records() == [trial(0)]


def test_the_lock_is_free_again_after_close(store: StudyStore) -> None:
    store.close()
    second = StudyStore(store.folder)
    second.open_for_writing()
    second.close()


def test_closing_twice_is_harmless(store: StudyStore) -> None:
    store.close()
    store.close()


# --- files replaced in one step ----------------------------------------------------------------------------------------


def test_info_comparison_and_timelines_come_back_as_they_were(store: StudyStore) -> None:
    spans = (Span(rank=0, track="compute", kind="forward", op="forward", start_s=0.0, end_s=0.1),)
    store.write_info(sample.info())
    store.write_comparison(sample.comparison())
    store.write_timeline(7, Timeline(spans=spans))
    assert store.exists()
    assert store.info() == sample.info()
    assert store.comparison() == sample.comparison()
    assert store.timeline(7) == Timeline(spans=spans)


def test_only_the_traces_asked_for_are_kept_within_the_limit(store: StudyStore) -> None:
    span = Span(rank=0, track="compute", kind="forward", op="forward", start_s=0.0, end_s=1.0)
    for number in range(5):
        store.write_timeline(number, Timeline(spans=(span,) * 10))
    size = (store.folder / "timelines" / "0003.json").stat().st_size
    store.keep_timelines([3, 1, 4], limit_bytes=2 * size)
    assert sorted(path.name for path in (store.folder / "timelines").iterdir()) == ["0001.json", "0003.json"]
    with pytest.raises(SpecError, match="no trace of trial 4 is kept: name one of 1, 3"):
        store.timeline(4)


def test_an_atomic_write_leaves_no_temporary_files(store: StudyStore) -> None:
    for _ in range(3):
        store.write_info(sample.info())
        store.write_comparison(sample.comparison())
    assert files_below(store.folder) == {"lock", "study.json", "comparison.json"}


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_json(path, sample.info())
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_json(path, {"not": {1j}})
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_no_temporary_files(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "study.json", {"not": {1j}})
    assert files_below(tmp_path) == set()


def test_a_file_is_complete_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of renaming, everything is in the temporary file, which is in the same folder."""
    path, seen = tmp_path / "study.json", []
    replace = Path.replace

    def noting_replace(self: Path, target: Path) -> Path:
        seen.append((self.parent, json.loads(self.read_text(encoding="utf-8"))))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting_replace)
    write_json(path, sample.info())
    assert seen == [(tmp_path, to_data(sample.info()))]


@pytest.mark.parametrize("content", ["{", "", "nonsense", "[" * 200_000, '{"seed": 1' + "0" * 5000 + "}"])
def test_a_damaged_file_is_an_error_that_names_it(store: StudyStore, content: str) -> None:
    (store.folder / "study.json").write_text(content, encoding="utf-8")
    with pytest.raises(StoreError, match=r"study\.json' is damaged"):
        store.info()


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"spans": [{"rank": 0,',
        "[]",
        "{}",
        '{"spans": []}',
        '{"traceEvents": []}',
        '{"spans": [{"rank": 0, "lane": "host", "kind": "data", "op": "data", "start_s": 0, "end_s": "soon"}]}',
        f'{{"spans": [], "clock_error_s": 1{"0" * 400}}}',
    ],
)
def test_a_damaged_or_foreign_trace_is_an_error_that_names_it(store: StudyStore, content: str) -> None:
    span = Span(rank=0, track="compute", kind="forward", op="forward", start_s=0.0, end_s=1.0)
    store.write_timeline(3, Timeline(spans=(span,)))
    (store.folder / "timelines" / "0003.json").write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=r"0003\.json"):
        store.timeline(3)


def test_a_point_that_is_no_pair_is_an_error_that_names_the_trace(store: StudyStore) -> None:
    span = Span(rank=0, track="compute", kind="forward", op="forward", start_s=0.0, end_s=1.0)
    counter = Counter(rank=0, name="power", unit="W", points=((0.5, 100.0),))
    store.write_timeline(3, Timeline(spans=(span,), counters=(counter,)))
    assert store.timeline(3).counters == (counter,)
    path = store.folder / "timelines" / "0003.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["counters"][0]["points"] = [[0.5]]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(StoreError, match=r"0003\.json' is damaged"):
        store.timeline(3)


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read '.*study\.json': No such file or directory"):
        read_json(StudyInfo, tmp_path / "study.json")


# --- files of older versions ------------------------------------------------------------------------------------------


def test_a_comparison_of_version_0_1_has_the_names_of_this_version(store: StudyStore) -> None:
    now = sample.comparison()
    old_names = [one.name.replace(DDP_TUNED, "DDP tuned by hand") for one in now.contenders]
    assert "DDP tuned by hand" in old_names
    old = [dataclasses.replace(one, name=name) for one, name in zip(now.contenders, old_names, strict=True)]
    store.write_comparison(dataclasses.replace(now, contenders=tuple(old)))
    assert store.comparison() == now


# --- schema ------------------------------------------------------------------------------------------------------------


def test_a_file_of_another_schema_asks_for_the_version_that_wrote_it(store: StudyStore) -> None:
    data = to_data(sample.info()) | {"schema": 2, "new_field": 1}
    (store.folder / "study.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(StoreError, match="has schema 2 but this version reads 1: use the version that wrote it"):
        store.info()


def test_a_record_of_another_schema_asks_for_the_version_that_wrote_it(store: StudyStore) -> None:
    lines(store).write_text(json.dumps(to_data(trial(0)) | {"schema": 2}) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match="has schema 2 but this version reads 1: use the version that wrote it"):
        store.records()


def test_a_record_of_another_schema_is_not_called_damaged(store: StudyStore) -> None:
    lines(store).write_text(json.dumps(to_data(trial(0)) | {"schema": 2}) + "\n", encoding="utf-8")
    with pytest.raises(StoreError) as caught:
        store.records()
    assert "damaged" not in str(caught.value)


# --- folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match=r"cannot write results to '.*': .*: name another folder with --results"):
        writable_folder(tmp_path / "file" / "results")


def test_a_study_below_a_regular_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError):
        StudyStore(tmp_path / "file" / "vgg" / "mixed4").open_for_writing()


def test_checking_a_folder_makes_it_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    writable_folder(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "safe"), [("vgg", "vgg"), ("pkg.mod:factory", "pkg.mod.factory"), ("a/b", "a_b"), ("vgg,lr=1", "vgg,lr=1")]
)
def test_a_workloads_name_is_made_fit_for_a_path(name: str, safe: str) -> None:
    assert safe_name(name) == safe
