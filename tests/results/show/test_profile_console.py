"""A profile in a terminal: everything that was measured, within the width, with a warning where it matters."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from autotune.results.show.profile_console import show_profile, slowest_ops, warnings
from autotune.results.show.report_console import make_console
from autotune.results.store.fits import Source
from autotune.results.store.profile import Profile
from autotune.results.store.profile_file import load_profile
from tests.results.store.test_profile_file import documented, profile


def shown(found: Profile, width: int = 100) -> str:
    stream = io.StringIO()
    show_profile(make_console(stream=stream, terminal=False, width=width), found, Path("profiles") / "x.json")
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_tables_keep_within_the_console(width: int) -> None:
    lines = shown(profile(), width).splitlines()
    assert all(len(line) <= width for line in lines if not line.startswith(("fit:", "broadcast:", "kept")))


def test_devices_ops_links_and_collectives_are_shown() -> None:
    text = shown(profile())
    for words in (
        "mlp-tiny on mixed4-first2 (emulated)",
        "device 1",
        "4-32",
        "Linear",
        "host0",
        "1 Gbit/s",
        ">= 1 Gbit/s",
    ):
        assert words in text
    assert "kept in profiles/x.json" in text


def test_collectives_have_the_columns_of_nccl_tests() -> None:
    """8 MiB in 1 ms + 8 MiB / 125 MB/s = 68.1 ms; of two ranks the bus bandwidth is the algorithm's."""
    text = shown(profile())
    (heading,) = [line for line in text.splitlines() if "algbw" in line]
    assert heading.split("  ")[0].strip() == "size (B)"
    (row,) = [line.split() for line in text.splitlines() if line.strip().startswith("8388608")]
    assert row == ["8388608", "68109", "0.1232", "0.1232", "0"]
    assert "fit: 1000 us + size / 1000 Mbit/s, worst error 0 %, 512 B to 8 MiB" in text


def test_codecs_are_shown_with_their_speed() -> None:
    """Two microseconds, then 2 GB/s in and 4 GB/s out."""
    lines = [line.split() for line in shown(profile()).splitlines()]
    assert ["0", "fp16", "2.00", "2.00", "0", "4.00", "0", "%", "1", "MiB"] in lines
    assert [line[:2] for line in lines if len(line) > 1 and line[1] in ("fp16", "bf16")] == [
        ["0", "fp16"],
        ["0", "bf16"],
        ["1", "fp16"],
        ["1", "bf16"],
    ]


def test_a_codec_too_fast_to_tell_has_no_speed() -> None:
    found = profile()
    fp16, bf16 = found.ranks[0].codecs
    quick = dataclasses.replace(fp16, decode=dataclasses.replace(fp16.decode, bytes_per_s=None))
    rank = dataclasses.replace(found.ranks[0], codecs=(quick, bf16))
    lines = [line.split() for line in shown(dataclasses.replace(found, ranks=(rank,))).splitlines()]
    assert ["0", "fp16", "2.00", "2.00", "0", "-", "0", "%", "1", "MiB"] in lines


def test_many_ranks_and_pairs_are_counted_instead_of_shown() -> None:
    found = profile()
    ranks = tuple(dataclasses.replace(found.ranks[0], rank=number) for number in range(15))
    text = shown(dataclasses.replace(found, ranks=ranks, links=found.links * 15))
    assert "and 3 more ranks" in text
    assert "and 6 more pairs" in text


def test_what_was_not_measured_is_said() -> None:
    assert "broadcast: not measured: not paced" in shown(profile())


def test_the_slowest_ops_come_first_with_their_share() -> None:
    first, *_ = slowest_ops(profile().ranks[0])
    assert first.op.name == "1"
    assert first.share == pytest.approx(0.98, abs=0.01)


def test_a_sound_profile_has_no_warnings() -> None:
    assert warnings(profile()) == []


def test_wrong_elements_late_devices_and_missing_time_are_warned_of() -> None:
    found = profile()
    wrong = dataclasses.replace(found.collectives[0].rows[0], num_wrong=3)
    collective = dataclasses.replace(found.collectives[0], rows=(wrong,))
    late, missing = (
        dataclasses.replace(found.ranks[0].steps[0], late_s=0.1),
        dataclasses.replace(found.ranks[1].steps[0], unattributed_s=0.002),
    )
    ranks = (
        dataclasses.replace(found.ranks[0], steps=(late,)),
        dataclasses.replace(found.ranks[1], steps=(missing,)),
    )
    said = warnings(dataclasses.replace(found, collectives=(collective,), ranks=ranks))
    assert len(said) == 3
    assert "rank 0: this machine is too slow" in said[0]
    assert "rank 1: the ops' sum is off" in said[1]
    assert "all-reduce over gloo: 3 elements arrived wrong" in said[2]


def test_a_profile_written_manually_is_shown_with_its_sources(tmp_path: Path) -> None:
    (tmp_path / "hand.json").write_text(documented())
    text = shown(load_profile(tmp_path / "hand.json"))
    assert Source.IMPORTED.value in text
    assert Source.DATASHEET.value in text
