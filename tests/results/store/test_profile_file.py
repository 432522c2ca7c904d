"""Profiles on disk: they come back as they were, and what is damaged or foreign is refused in one clear message."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.results.store.fits import MemoryFit, Source, TransferFit, TransferRow, WorkFit
from autotune.results.store.profile import (
    CodecProfile,
    CodecRow,
    CollectiveProfile,
    HostLink,
    LinkProfile,
    OpProfile,
    Profile,
    RankProfile,
    ShardedProfile,
    StepPoint,
    joint_fingerprint,
)
from autotune.results.store.profile_file import load_profile, profile_path, save_profile
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import to_data
from tests.mpi.launch import ROOT

SIZES = (4, 8, 16, 32)


def work(fixed_s: float, per_sample_s: float) -> WorkFit:
    return WorkFit.measured([(size, fixed_s + per_sample_s * size) for size in SIZES])


def codec(name: str, bytes_per_s: float) -> CodecProfile:
    sizes = [2**16, 2**18, 2**20]
    rows = tuple(CodecRow(num_bytes=n, encode_s=2e-6 + n / bytes_per_s, decode_s=n / bytes_per_s / 2) for n in sizes)
    return CodecProfile(
        name=name,
        encode=TransferFit.through([(row.num_bytes, row.encode_s) for row in rows]),
        decode=TransferFit.through([(row.num_bytes, row.decode_s) for row in rows]),
        rows=rows,
    )


def rank(number: int) -> RankProfile:
    ops = [
        OpProfile(name=name, kind=kind, forward=work(1e-4, cost), backward=work(2e-4, 2 * cost))
        for name, kind, cost in (("0", "Flatten", 0.0), ("1", "Linear", 1e-3), ("(loss)", "loss", 1e-5))
    ]
    steps = [
        StepPoint(
            num_samples=size,
            data_s=1e-5,
            compute_s=9e-4 + 3.03e-3 * size,
            optimizer_s=1e-4,
            ops_s=9e-4 + 3.03e-3 * size + 1e-5,
            unattributed_s=-1e-5,
            peak_memory_bytes=4096 + 100 * size,
        )
        for size in SIZES
    ]
    return RankProfile(
        rank=number,
        device=f"device {number}",
        host=f"host{number}",
        compute=work(9e-4, 3.03e-3),
        optimizer=work(1e-4, 0.0),
        data=work(1e-5, 0.0),
        memory=MemoryFit.measured([(size, 4096 + 100 * size) for size in SIZES]),
        ops=tuple(ops),
        steps=tuple(steps),
        codecs=(codec("fp16", 2e9), codec("bf16", 4e9)),
    )


def rows(kind: str, latency_s: float = 1e-3, bytes_per_s: float = 125e6) -> tuple[TransferRow, ...]:
    sizes = [512 * 4**power for power in range(8)]
    return tuple(TransferRow.measured(kind, 2, size, latency_s + size / bytes_per_s, 0) for size in sizes)


def profile() -> Profile:
    links = [
        LinkProfile(from_host=a, to_host=b, transport="gloo", fit=TransferFit.measured(rows("send")), rows=rows("send"))
        for a, b in (("host0", "host1"), ("host1", "host0"))
    ]
    collective = CollectiveProfile(
        kind="all-reduce",
        transport="gloo",
        num_ranks=2,
        fit=TransferFit.measured(rows("all-reduce")),
        rows=rows("all-reduce"),
    )
    host = HostLink(
        host="host0", source=Source.MEASURED, up_bytes_per_s=125e6, down_bytes_per_s=None, up_is_limit=False
    )
    return Profile(
        workload="mlp-tiny",
        workload_fingerprint="0123456789ab",
        cluster="mixed4-first2",
        cluster_fingerprint="ba9876543210",
        label="emulated",
        ranks=(rank(0), rank(1)),
        links=tuple(links),
        hosts=(host,),
        collectives=(collective,),
        unavailable={"broadcast": "not paced"},
        command="autotune profile",
        created_at="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_profile(tmp_path, profile())


def change(path: Path, *keys: str | int, to: Any) -> None:
    """Set what stands at that place of the file."""
    data = json.loads(path.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    path.write_text(json.dumps(data))


def refusal(path: Path) -> str:
    """The one message, which names the file."""
    with pytest.raises(SpecError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# --- round trip --------------------------------------------------------------------------------------------------------


def test_a_profile_comes_back_as_it_was(saved: Path) -> None:
    assert load_profile(saved) == profile()


def test_it_is_found_under_workload_cluster_and_fingerprint(tmp_path: Path, saved: Path) -> None:
    fingerprint = joint_fingerprint("0123456789ab", "ba9876543210")
    assert saved == profile_path(tmp_path, "mlp-tiny", "mixed4-first2", fingerprint)
    assert saved.parent == tmp_path / "profiles"
    assert re.fullmatch(r"mlp-tiny@mixed4-first2-[0-9a-f]{12}\.json", saved.name)
    other = dataclasses.replace(profile(), workload_fingerprint="ffffffffffff")
    assert save_profile(tmp_path, other) != saved
    own = dataclasses.replace(profile(), workload="my.module:factory")
    assert save_profile(tmp_path, own).name.startswith("my.module.factory@")


def test_measuring_again_replaces_the_file(tmp_path: Path, saved: Path) -> None:
    again = dataclasses.replace(profile(), created_at="2026-02-02T00:00:00+00:00")
    assert save_profile(tmp_path, again) == saved
    assert load_profile(saved) == again
    assert len(list(saved.parent.iterdir())) == 1


def test_every_number_says_where_it_comes_from_and_where_it_holds(saved: Path) -> None:
    def fits(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, dict):
            own = [value] if {"fixed_s", "latency_s", "fixed_bytes"} & set(value) and "low" in value else []
            return own + [fit for item in value.values() for fit in fits(item)]
        return [fit for item in value for fit in fits(item)] if isinstance(value, list) else []

    found = fits(json.loads(saved.read_text()))
    assert len(found) == 2 * (4 + 3 * 2 + 2 * 2) + 2 + 1
    assert all(fit["source"] == "measured" and fit["low"] < fit["high"] for fit in found)


def test_a_question_outside_the_range_can_be_refused() -> None:
    compute = rank(0).compute
    assert [compute.covers(size) for size in (3, 4, 32, 33)] == [False, True, True, False]
    assert compute.seconds(16) == pytest.approx(9e-4 + 3.03e-3 * 16)


def test_what_a_codec_costs_is_asked_by_its_name() -> None:
    fp16 = rank(0).codec("fp16")
    assert fp16 is not None
    assert fp16.encode.seconds(2**20) == pytest.approx(2e-6 + 2**20 / 2e9)
    assert (rank(0).codec("none"), rank(0).codec("int8")) == (None, None)


def test_a_profile_from_before_codecs_were_measured_can_be_read(saved: Path) -> None:
    data = json.loads(saved.read_text())
    for entry in data["ranks"]:
        del entry["codecs"]
    saved.write_text(json.dumps(data))
    assert load_profile(saved).ranks[0].codecs == ()


# --- written manually ------------------------------------------------------------------------------------------------------


def documented() -> str:
    """The example of a device measured elsewhere in docs/files.md."""
    text = (ROOT / "docs" / "files.md").read_text()
    section = text[text.index("## Profile (JSON)") :]
    return section.split("```json\n")[1].split("```")[0]


def test_the_documented_example_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.json"
    path.write_text(documented())
    found = load_profile(path)
    assert found.ranks[0].compute.source is Source.IMPORTED
    assert found.links[0].fit.source is Source.DATASHEET
    assert found.links[0].fit.seconds(125e6) == pytest.approx(1.00005, rel=1e-3)


def test_the_documentation_names_every_key() -> None:
    text = (ROOT / "docs" / "files.md").read_text()
    section = text[text.index("## Profile (JSON)") :]
    kinds = (Profile, RankProfile, OpProfile, StepPoint, CodecProfile, CodecRow)
    kinds += (LinkProfile, HostLink, CollectiveProfile, ShardedProfile)
    fits = (WorkFit, MemoryFit, TransferFit, TransferRow)
    for kind in (*kinds, *fits):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in section, f"{kind.__name__}.{field.name}"


def test_times_that_devices_share(saved: Path) -> None:
    """Kept and read; a degree of one, or other ops than the rank's, are refused."""
    profile = load_profile(saved)
    rank = profile.ranks[0]
    sharded = ShardedProfile(degree=2, compute=rank.compute, ops=rank.ops, includes_sums=True)

    def with_times(one: ShardedProfile) -> Path:
        changed = dataclasses.replace(rank, sharded=(one,))
        return save_profile(saved.parent.parent, dataclasses.replace(profile, ranks=(changed, *profile.ranks[1:])))

    found = load_profile(with_times(sharded)).ranks[0]
    assert found.shared_by(2) == sharded
    assert found.shared_by(4) is None
    for wrong in (dataclasses.replace(sharded, degree=1), dataclasses.replace(sharded, ops=())):
        with pytest.raises(SpecError, match="the degree is at least 2, and the ops are those of the rank"):
            load_profile(with_times(wrong))


# --- damaged and foreign -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
def test_a_file_cut_short_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_text()
    saved.write_text(whole[: int(len(whole) * share)])
    assert "cut short or damaged" in refusal(saved)


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_an_empty_file_is_refused(saved: Path, content: str) -> None:
    saved.write_text(content)
    assert "is empty" in refusal(saved)


@pytest.mark.parametrize("content", [b"\x80\x02}q\x00.", b"\xff\xfe{\x00}\x00", bytes(range(256))])
def test_a_file_that_is_no_text_is_refused(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    assert "is not text" in refusal(saved) or "damaged" in refusal(saved)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        '"autotune profile"',
        "{}",
        "null",
        '{"traceEvents": []}',
        '{"kind": "trace", "schema": 1}',
        '{"schema": 1}',
    ],
)
def test_a_file_of_another_kind_is_refused(saved: Path, content: str) -> None:
    saved.write_text(content)
    assert "is not one" in refusal(saved)


def test_a_kept_plan_is_no_profile(saved: Path) -> None:
    from autotune.results.store.best import save_best
    from tests.results.store.test_best import kept

    assert "is not one" in refusal(save_best(saved.parent, kept()))


@pytest.mark.parametrize("schema", [0, 2, None, "1", 1.5])
def test_another_schema_is_refused_with_the_advice_to_use_its_version(saved: Path, schema: Any) -> None:
    change(saved, "schema", to=schema)
    assert "use the version that wrote it" in refusal(saved)


def test_a_missing_file_and_a_folder_are_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    assert "autotune profile" in refusal(tmp_path / "none.json")
    assert "cannot read" in refusal(tmp_path)


def test_too_deep_to_be_read_is_refused(saved: Path) -> None:
    saved.write_text("[" * 200_000)
    assert "damaged" in refusal(saved)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("ranks",), [], "at least one rank"),
        (("ranks",), {}, "it must be a list"),
        (("ranks", 0), 7, "ranks[0] is 7"),
        (("ranks", 1, "rank"), 5, "numbered 0, 1, 2"),
        (("ranks", 0, "compute"), None, "ranks[0].compute"),
        (("ranks", 0, "compute", "source"), "guessed", "'measured', 'imported', 'datasheet'"),
        (("ranks", 0, "compute", "fixed_s"), -1.0, "ranks[0].compute.fixed_s is -1.0"),
        (("ranks", 0, "compute", "fixed_s"), "1 ms", "it must be a number"),
        (("ranks", 0, "compute", "fixed_s"), 10**400, "too large"),
        (("ranks", 0, "compute", "low"), 64, "low must not exceed high"),
        (("ranks", 0, "ops", 1, "name"), "0", "op '0' twice"),
        (("ranks", 0, "opps"), [], "did you mean 'ops'"),
        (("ranks", 0, "compute", "points", 0), [4.0], "points[0] has 1 numbers"),
        (("ranks", 0, "codecs", 1, "name"), "fp16", "codec 'fp16' twice"),
        (("ranks", 0, "codecs", 1, "name"), "bf61", "did you mean 'bf16'"),
        (("ranks", 0, "codecs", 0, "encode", "bytes_per_s"), 0, "above zero"),
        (("ranks", 0, "codecs", 0, "rows", 0, "decode_s"), -1, "not negative"),
        (("ranks", 0, "memory", "bytes_per_sample"), True, "it must be a number"),
        (("links", 0, "fit", "bytes_per_s"), 0, "above zero"),
        (("hosts", 0, "up_bytes_per_s"), 0.0, "above zero"),
        (("collectives", 0, "rows", 0, "num_bytes"), -4, "not negative"),
        (("unavailable",), [], "it must be a table"),
    ],
)
def test_what_cannot_be_is_refused_and_named(saved: Path, keys: tuple[str | int, ...], value: Any, words: str) -> None:
    change(saved, *keys, to=value)
    message = refusal(saved)
    assert words in message
    assert "docs/files.md" in message


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(saved: Path, constant: str) -> None:
    change(saved, "ranks", 0, "compute", "fixed_s", to=123456.0)
    saved.write_text(saved.read_text().replace("123456.0", constant))
    assert refusal(saved)


@pytest.mark.parametrize("kind", ["ranks", "links", "collectives"])
def test_a_missing_key_is_named(saved: Path, kind: str) -> None:
    data = to_data(profile())
    del data[kind][0][next(iter(data[kind][0]))]
    saved.write_text(json.dumps(data))
    assert "lacks" in refusal(saved)
