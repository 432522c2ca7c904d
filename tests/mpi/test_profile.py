"""`autotune profile` as a user runs it, and the messages with which it measures links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.profilers.perfetto import read_trace
from autotune.results.store.environment import describe_environment
from autotune.results.store.fits import Source
from autotune.results.store.profile import Profile
from autotune.results.store.profile_file import load_profile
from autotune.results.store.store import write_json
from tests.mpi.launch import ROOT, Finished, autotune, mpirun, refused
from tests.profile_errors import PUBLISHED, link_errors, publishing

MESSAGES = Path(__file__).parent / "programs" / "messages.py"
TWO_HOSTS = """
emulation = "paced"
[device.quick]
flops = "10 MFLOP/s"
[[host]]
name = "a"
devices = ["quick"]
uplink = "2 Gbit/s"
downlink = "1 Gbit/s"
latency = "500 us"
[[host]]
name = "b"
devices = ["quick"]
uplink = "1 Gbit/s"
downlink = "2 Gbit/s"
latency = "500 us"
"""
FAR_HOSTS = """
emulation = "paced"
[device.quick]
flops = "10 MFLOP/s"
""" + "".join(
    f'[[host]]\nname = "far{n}"\ndevices = ["quick"]\nuplink = "{up} Mbit/s"\ndownlink = "{down} Mbit/s"\nlatency = "{ms} ms"\n'
    for n, (up, down, ms) in enumerate(((1000, 1000, 5), (500, 1000, 5), (200, 500, 10), (100, 200, 20)))
)


def run(folder: Path, num_ranks: int, text: str, *options: str, timeout_s: float = 90) -> tuple[Profile, Finished]:
    (folder / "hosts.toml").write_text(text)
    job = ("profile", "--workload", "mlp-tiny", "--cluster", "hosts.toml", *options)
    done = autotune(num_ranks, *job, cwd=folder, timeout_s=timeout_s)
    assert done.code == 0, done.err
    (path,) = (folder / "results" / "data" / "profiles").glob("mlp-tiny@hosts-*.json")
    return load_profile(path), done


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_messages_keep_the_contract(num_ranks: int, tmp_path: Path) -> None:
    done = mpirun(num_ranks, str(MESSAGES), str(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err
    cases = [json.loads(line) for line in done.out.splitlines()]
    assert len(cases) == 2 * (4 * 3 + 2 + 4) + 1
    assert not [case["case"] for case in cases if not case["ok"]]


@pytest.mark.mpi
@pytest.mark.slow
def test_a_profile_is_measured_shown_and_kept(tmp_path: Path) -> None:
    trace = ("--trace", str(tmp_path / "trace.json"))
    found, done = run(tmp_path, 2, TWO_HOSTS, "--rounds", "3", "--json", "--transports", "gloo", *trace)
    spans = read_trace(tmp_path / "trace.json").spans
    assert {(span.rank, span.kind) for span in spans} >= {
        (rank, kind) for rank in (0, 1) for kind in ("forward", "comm")
    }
    shown = json.loads(done.out)
    assert shown["kind"] == "autotune profile"
    assert (found.label, found.workload, len(found.ranks)) == ("emulated", "mlp-tiny", 2)
    assert [op.name for op in found.ranks[0].ops] == [*"012345", "(model)", "(loss)"]
    assert all(rank.compute.per_sample_s > 0 and rank.memory is not None for rank in found.ranks)
    assert {(link.from_host, link.to_host) for link in found.links} == {("a", "b"), ("b", "a")}
    assert [(one.kind, one.transport, one.collective) for one in found.collectives] == [
        ("all-reduce", "gloo", "ring"),
        ("all-reduce", "gloo", "shards"),
    ]
    assert all(one.num_in_flight > 1 and one.in_flight for one in found.collectives)
    assert set(found.unavailable) == {"broadcast", "all-gather"}
    every = [*(link.rows for link in found.links), *(one.rows for one in found.collectives)]
    assert all(row.num_wrong == 0 and row.seconds > 0 for rows in every for row in rows)
    assert all(link.fit.source is Source.MEASURED for link in found.links)
    for rank in found.ranks:
        assert [codec.name for codec in rank.codecs] == ["fp16", "bf16", "int8", "topk", "powersgd"]
        assert all(row.encode_s > 0 and row.decode_s > 0 for codec in rank.codecs for row in codec.rows)


@pytest.mark.mpi
@pytest.mark.slow
def test_real_devices_and_links_are_measured_too(tmp_path: Path) -> None:
    job = ("profile", "--workload", "mlp-tiny", "--cluster", "this-machine", "--rounds", "3")
    done = autotune(2, *job, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "all-gather over mpi" in done.out
    (path,) = (tmp_path / "results" / "data" / "profiles").glob("*.json")
    found = load_profile(path)
    assert found.label == "measured on this machine"
    assert not found.unavailable
    kinds = {(one.kind, one.transport) for one in found.collectives}
    assert kinds == {(kind, over) for kind in ("all-reduce", "broadcast", "all-gather") for over in ("gloo", "mpi")}
    assert all(row.num_wrong == 0 for one in found.collectives for row in one.rows)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_job_of_one_rank_has_a_device_and_no_network(tmp_path: Path) -> None:
    done = autotune(1, "profile", "--workload", "mlp-tiny", "--rounds", "3", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert (shown["links"], shown["collectives"]) == ([], [])
    assert set(shown["unavailable"]) == {"links", "all-reduce", "broadcast", "all-gather"}


@pytest.mark.mpi
@pytest.mark.slow
def test_what_cannot_be_profiled_is_refused_once(tmp_path: Path) -> None:
    refused(autotune(2, "profile", "--workload", "vgb", cwd=tmp_path), "vgb", "vgg")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_links_are_within_10_percent_of_the_emulated_ones(tmp_path: Path) -> None:
    found, done = run(tmp_path, 4, FAR_HOSTS, "--rounds", "3", "--quiet", timeout_s=300)
    errors = link_errors(found, tmp_path / "hosts.toml")
    if publishing():
        keep("emulated-links", found, errors, seconds=done.seconds)
    assert all(abs(pair["bandwidth_error"]) < 0.1 for pair in errors["pairs"]), errors
    assert all(abs(pair["latency_error"]) < 0.1 for pair in errors["pairs"]), errors
    for one in errors["collectives"]:
        assert abs(one["bandwidth_error"]) < 0.1, errors
        assert abs(one["latency_error"]) < 0.1, errors
    for host in errors["hosts"]:
        assert all(abs(host[side]) < 0.1 for side in ("up_error", "down_error") if host[side] is not None), errors


def keep(name: str, found: Profile, errors: dict[str, Any], **more: Any) -> None:
    folder = ROOT / "results" / "published" / PUBLISHED
    folder.mkdir(parents=True, exist_ok=True)
    made_by = {"command": "nox -s profile", "environment": describe_environment(), "label": found.label}
    write_json(folder / f"{name}.json", made_by | errors | more)
