"""`autotune init`: from machines to a cluster, from a cluster to a file and back, and the command itself."""

from __future__ import annotations

import json
import tomllib

import pytest

from autotune.cli.init import found_cluster, unstated, with_measured
from autotune.cli.main import main
from autotune.profilers.gpu_links import Gpu
from autotune.profilers.machine import Machine, Nic
from autotune.results.store.environment import processor_name
from autotune.results.store.profile import Profile
from autotune.results.text.cluster_text import Branch, cluster_toml, cluster_tree
from autotune.simulate.link_sources import with_links
from autotune.workloads.cluster import load_cluster, parse_cluster
from autotune.workloads.errors import SpecError
from tests.autotune.simulate.test_stages import pair
from tests.workloads.test_topology import FILE, PAIRS, cluster_of

GBIT = 1e9 / 8


def gpus(count, nvlinks=()):
    """GPUs of one kind; `nvlinks` joins pairs of them with four links each."""
    return tuple(
        Gpu(
            name="NVIDIA A100-SXM4-40GB",
            memory_bytes=40e9,
            bus=f"bus{number}",
            pcie_bytes_per_s=31.5e9,
            nvlinks=tuple((f"bus{sum(ends) - number}", 25e9) for ends in nvlinks if number in ends for _ in range(4)),
        )
        for number in range(count)
    )


def machine(host, found=(), nics=(("eth0", 100 * GBIT),)):
    listed = tuple(Nic(name=name, bytes_per_s=speed) for name, speed in nics)
    return Machine(host=host, num_cores=8, memory_bytes=1e11, gpus=found, nics=listed)


def test_hosts_of_gpus():
    islands = [(0, 1), (2, 3)]
    nodes = [
        machine(f"node{n}", gpus(4, islands), [("eth0", 100 * GBIT), ("eth1", 100 * GBIT), ("mgmt", GBIT)])
        for n in (0, 1)
    ]
    found = found_cluster([nodes[0]] * 4 + [nodes[1]] * 4, "ours")
    host = found.cluster.hosts[1]
    assert [device.name for device in host.devices] == ["NVIDIA A100-SXM4-40GB"] * 4
    assert (host.link.up_bytes_per_s, host.nic_of_device) == (200 * GBIT, (0, 0, 1, 1))
    assert host.fabric.islands == ((0, 1), (2, 3))
    assert (host.fabric.device.up_bytes_per_s, host.fabric.island.up_bytes_per_s) == (31.5e9, 100e9)
    text = cluster_toml(found.cluster, found.notes)
    assert parse_cluster(tomllib.loads(text), where="x", default_name="x") == found.cluster
    assert text.startswith("# no speed of a device is stated")


def test_what_is_not_known_is_said():
    bare = [machine("a", nics=()), machine("b", gpus(1)), machine("a", nics=()), machine("b", gpus(1))]
    found = found_cluster(bare, "bare")
    assert [host.name for host in found.cluster.hosts] == ["a", "b"]
    assert found.cluster.hosts[0].link is None
    assert {device.name for device in found.cluster.devices} == {"cpu"}
    notes = " ".join(found.notes)
    assert "ranks alternate between hosts" in notes
    assert "a reports no speed of its network" in notes
    assert "b has 1 GPUs for 2 ranks" in notes


def test_measured_links_replace_nominal_ones():
    nominal = found_cluster([machine("host0", gpus(2))] * 2 + [machine("host1", gpus(2, [(0, 1)]))] * 2, "m").cluster
    links = (pair(0, 1, 7e9 / 3), pair(1, 0, 7e9 / 3), pair(0, 0, 20e9), pair(1, 1, 80e9))
    profile = Profile(workload="", cluster="m", label="measured", ranks=(), links=links)
    first, second = with_measured(nominal, with_links(unstated(nominal), [profile])).hosts
    assert first.link.up_bytes_per_s == second.link.down_bytes_per_s == 2.33e9
    assert first.fabric.device.up_bytes_per_s == 20e9
    assert second.fabric == nominal.hosts[1].fabric  # one pair was measured, in the island


def test_files_state_what_a_cluster_is():
    for cluster in (cluster_of(FILE + PAIRS), *map(load_cluster, ("mixed4", "two-fast-two-slow"))):
        text = cluster_toml(cluster)
        assert parse_cluster(tomllib.loads(text), where="x", default_name="x") == cluster


def test_the_tree_shows_hosts_alike_once():
    root = cluster_tree(cluster_of(FILE + PAIRS))
    assert root.label == "test: 10 devices in 3 hosts"
    left, right, limit, cable = root.below
    assert left.label == "rack left: 24 Gbit/s up, 16 Gbit/s down, 7 us"
    assert left.below[0].label == "2 hosts a0 to a1: 2 NICs, each 8 Gbit/s, 20 us, ranks 0 to 7"
    (fabric,) = left.below[0].below
    assert fabric.label == "fabric: 80 Gbit/s, 4 us each, 128 Gbit/s in all"
    assert [island.below for island in fabric.below] == [(Branch(label="2 x gpu"),)] * 2
    assert right.below == (Branch(label="b: 16 Gbit/s, 30 us", below=(Branch(label="2 x gpu, ranks 8, 9"),)),)
    assert (limit.label, cable.label) == ("a0 to b: at most 4 Gbit/s", "a0/0 to a1/0: directly 400 Gbit/s, 1 us")


def test_the_command_writes_a_file_once(tmp_path, capsys):
    file = tmp_path / "here.toml"
    assert main(["init", "--output", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    cluster = load_cluster(str(file))
    if {device.memory_bytes for device in cluster.devices} == {None}:
        assert {device.name for device in cluster.devices} == {processor_name()}
    assert document["file"] == str(file)
    assert document["tree"]["label"] == f"here: {len(cluster.devices)} devices in 1 hosts"
    before = file.read_text()
    assert main(["init", "--output", str(file)]) == SpecError.exit_code
    assert "name another file with --output" in capsys.readouterr().err
    assert file.read_text() == before
    assert main(["init", "--output", str(tmp_path / "other.toml")]) == 0
    assert "other: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x.json"], "a cluster file ends in .toml"),
        (["--output", "no/such/x.toml"], "there is no folder"),
        (["--measure", "--output", "x.toml"], "start it with --ranks N, or with mpirun"),
    ],
)
def test_errors(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", *arguments]) == SpecError.exit_code
    assert message in capsys.readouterr().err
