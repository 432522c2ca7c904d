"""Cluster files: the shipped clusters are what they claim, and every mistake in a user's file is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autotune.workloads.cluster import Cluster, Device, Host, Link, cluster_names, load_cluster, stated_name
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import from_data, to_data

GBIT = 125e6

GOOD = """
description = "two hosts"
emulation = "paced"

[device.fast]
flops = "2 GFLOP/s"
memory_bandwidth = "1 GB/s"
launch = "10 us"
memory = "1 GiB"

[device.slow]
flops = "500 MFLOP/s"

[[host]]
name = "a"
devices = ["fast", "slow"]
uplink = "1 Gbit/s"
downlink = "2 Gbit/s"
latency = "50 us"

[[host]]
name = "b"
devices = ["slow"]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_cluster(write(folder, text))
    return str(caught.value)


# --- what ships --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_loads_under_its_own_name_and_says_what_it_is(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.description
    assert len(cluster.devices) == len(cluster.host_of_rank) >= 1


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_survives_json(name: str) -> None:
    cluster = load_cluster(name)
    again = from_data(Cluster, json.loads(json.dumps(to_data(cluster))), "cluster")
    assert again == cluster
    assert again.fingerprint() == cluster.fingerprint()


def test_the_shipped_clusters_have_different_fingerprints() -> None:
    assert len({load_cluster(name).fingerprint() for name in cluster_names()}) == len(cluster_names())


def test_mixed4_has_relative_speeds_of_exactly_1_two_thirds_a_half_and_a_quarter() -> None:
    devices = load_cluster("mixed4").devices
    for speed in ("flops_per_s", "memory_bytes_per_s"):
        rates = [getattr(device, speed) for device in devices]
        assert [rates[0] / rate for rate in rates] == [1.0, 1.5, 2.0, 4.0]


def test_mixed4_has_four_hosts_of_one_device_at_one_gigabit_each_way() -> None:
    cluster = load_cluster("mixed4")
    assert cluster.host_of_rank == (0, 1, 2, 3)
    links = {host.link for host in cluster.hosts}
    assert len(links) == 1
    link = links.pop()
    assert link is not None
    assert (link.up_bytes_per_s, link.down_bytes_per_s) == (GBIT, GBIT)
    assert link.latency_s == pytest.approx(50e-6)


def test_mixed4_gives_every_device_one_gibibyte() -> None:
    assert {device.memory_bytes for device in load_cluster("mixed4").devices} == {2.0**30}


def test_slow_link4_has_equal_devices_and_one_host_at_a_fifth_of_the_bandwidth() -> None:
    cluster = load_cluster("slow-link4")
    assert len(set(cluster.devices)) == 1
    links = [host.link for host in cluster.hosts if host.link is not None]
    assert [link.up_bytes_per_s for link in links] == [GBIT, GBIT, GBIT, GBIT / 5]
    assert [link.down_bytes_per_s for link in links] == [GBIT, GBIT, GBIT, GBIT / 5]


def test_two_fast_two_slow_puts_two_ranks_on_each_of_two_hosts() -> None:
    cluster = load_cluster("two-fast-two-slow")
    assert cluster.host_of_rank == (0, 0, 1, 1)
    assert [device.name for device in cluster.devices] == ["fast", "fast", "slow", "slow"]


def test_figures_of_an_emulated_cluster_are_labelled_so() -> None:
    assert load_cluster("mixed4").label == "emulated"
    assert load_cluster("this-machine").label == "measured on this machine"


# --- the file format ---------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_written(tmp_path: Path) -> None:
    fast = Device(name="fast", flops_per_s=2e9, memory_bytes_per_s=1e9, launch_s=1e-5, memory_bytes=2.0**30)
    slow = Device(name="slow", flops_per_s=5e8)
    link = Link(up_bytes_per_s=GBIT, down_bytes_per_s=2 * GBIT, latency_s=5e-5)
    cluster = load_cluster(write(tmp_path, GOOD))
    assert cluster.name == "mine"
    assert cluster.is_emulated
    assert cluster.hosts[1] == Host(name="b", devices=(slow,), link=None)
    assert cluster.hosts[0].name == "a"
    assert cluster.hosts[0].devices[1] == slow
    assert dataclasses.astuple(cluster.hosts[0].devices[0]) == pytest.approx(dataclasses.astuple(fast))
    assert cluster.hosts[0].link is not None
    assert dataclasses.astuple(cluster.hosts[0].link) == pytest.approx(dataclasses.astuple(link))


def test_a_file_may_name_itself(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, 'name = "lab"\n' + GOOD)).name == "lab"


def test_an_unknown_cluster_suggests_the_nearest() -> None:
    with pytest.raises(
        SpecError, match=r"unknown cluster 'mixed5': did you mean 'mixed4'\? \(your own: --cluster FILE"
    ):
        load_cluster("mixed5")


def test_a_name_like_no_other_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match="known: mixed-both4, mixed4, slow-link4, this-machine"):
        load_cluster("zzz")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('flop = "2 GFLOP/s"', "flops"),
        ('memory_bandwith = "1 GB/s"', "memory_bandwidth"),
        ('lunch = "10 us"', "launch"),
    ],
)
def test_an_unknown_key_of_a_device_suggests_the_one_that_was_meant(tmp_path: Path, wrong: str, right: str) -> None:
    text = GOOD.replace("[device.slow]\n", f"[device.slow]\n{wrong}\n")
    message = refusal(tmp_path, text)
    assert f"did you mean {right!r}?" in message
    assert "mine.toml [device.slow]" in message


def test_an_unknown_key_of_a_host_names_the_host(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace('downlink = "2', 'downlnk = "2'))
    known = "known keys: name, count, devices, uplink, downlink, latency, cpus, nics, fabric, rack"
    assert message == f"unknown key 'downlnk' in mine.toml [[host]] 0: did you mean 'downlink'? {known}"
    other = refusal(tmp_path, GOOD.replace('downlink = "2', 'nvlink = "2'))
    assert other == f"unknown key 'nvlink' in mine.toml [[host]] 0: {known}"


def test_an_unknown_key_at_the_top_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'emulation'?" in refusal(tmp_path, GOOD.replace('emulation = "paced"', 'emulate = "paced"'))


def test_an_unknown_emulation_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'paced'?" in refusal(tmp_path, GOOD.replace('"paced"', '"pace"'))


def test_a_paced_device_without_a_speed_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace('flops = "500 MFLOP/s"', ""))
    assert message == 'mine.toml is paced, but a device states no speed: give every [device.*] a flops = "… GFLOP/s"'


def test_a_real_device_needs_no_speed(tmp_path: Path) -> None:
    text = GOOD.replace('flops = "500 MFLOP/s"', "").replace('emulation = "paced"', "")
    assert load_cluster(write(tmp_path, text)).devices[1].flops_per_s is None


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ('uplink = "1 Gbit"', "[[host]] 0 uplink"),
        ('uplink = "1 GiB"', "[[host]] 0 uplink"),
        ("uplink = 1000000000", "[[host]] 0 uplink"),
        ('uplink = "fast"', "[[host]] 0 uplink"),
        ('uplink = "-1 Gbit/s"', "[[host]] 0 uplink"),
    ],
)
def test_a_quantity_without_a_proper_unit_is_refused_where_it_stands(tmp_path: Path, wrong: str, place: str) -> None:
    assert f"mine.toml {place} is" in refusal(tmp_path, GOOD.replace('uplink = "1 Gbit/s"', wrong))


@pytest.mark.parametrize("line", ['uplink = "1 Gbit/s"\n', 'downlink = "2 Gbit/s"\n'])
def test_only_one_of_uplink_and_downlink_is_refused(tmp_path: Path, line: str) -> None:
    message = refusal(tmp_path, GOOD.replace(line, ""))
    assert message == "mine.toml [[host]] 0 states only one of uplink and downlink: state both, or neither"


def test_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace('name = "b"', 'name = "a"'))
    assert message == "mine.toml names two hosts alike: give every [[host]] its own name"


def test_hosts_without_names_get_their_own(tmp_path: Path) -> None:
    text = GOOD.replace('name = "a"\n', "").replace('name = "b"\n', "")
    assert len({host.name for host in load_cluster(write(tmp_path, text)).hosts}) == 2


def test_a_host_that_names_an_unknown_device_suggests_one(tmp_path: Path) -> None:
    assert "did you mean 'slow'?" in refusal(tmp_path, GOOD.replace('devices = ["slow"]', 'devices = ["slo"]'))


@pytest.mark.parametrize("devices", ["", "devices = []", 'devices = "slow"'])
def test_a_host_without_a_list_of_devices_is_refused(tmp_path: Path, devices: str) -> None:
    assert "has no devices" in refusal(tmp_path, GOOD.replace('devices = ["slow"]', devices))


@pytest.mark.parametrize("text", ["", 'description = "nothing"', '[device.a]\nflops = "1 GFLOP/s"'])
def test_a_cluster_without_hosts_is_refused(tmp_path: Path, text: str) -> None:
    assert "has no [[host]]" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text", ['device = "fast"\n', 'host = "a"\n', "host = 3\n", '[[device]]\nflops = "1 GFLOP/s"\n']
)
def test_a_value_where_a_table_belongs_is_refused(tmp_path: Path, text: str) -> None:
    assert "mine.toml" in refusal(tmp_path, text)


@pytest.mark.parametrize("name", ["a/b", "../a", ""])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    assert f"names the cluster {name!r}" in refusal(tmp_path, f'name = "{name}"\n' + GOOD)


def test_a_latency_without_a_link_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace('devices = ["slow"]', 'devices = ["slow"]\nlatency = "50 us"')
    assert "[[host]] 1 states a latency but no uplink" in refusal(tmp_path, text)


@pytest.mark.parametrize("value", ['"false"', "1"])
def test_any_ranks_is_true_or_false(tmp_path: Path, value: str) -> None:
    assert "it must be true or false" in refusal(tmp_path, f"any_ranks = {value}\n" + GOOD)


def test_any_ranks_needs_exactly_one_device(tmp_path: Path) -> None:
    assert "any_ranks and 3 devices" in refusal(tmp_path, "any_ranks = true\n" + GOOD)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "devices = [")
    assert "is not valid TOML" in message
    assert "mine.toml" in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(SpecError, match="is not valid TOML"):
        load_cluster(str(path))


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read cluster file '.*none\.toml': No such file"):
        load_cluster(str(tmp_path / "none.toml"))


def test_a_folder_called_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SpecError, match="cannot read cluster file"):
        load_cluster(str(tmp_path / "folder.toml"))


# --- fingerprints ------------------------------------------------------------------------------------------------------


def test_a_description_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    before = load_cluster(write(tmp_path, GOOD)).fingerprint()
    assert load_cluster(write(tmp_path, GOOD.replace("two hosts", "other words"))).fingerprint() == before


def test_the_same_speed_in_other_units_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    before = load_cluster(write(tmp_path, GOOD)).fingerprint()
    text = GOOD.replace("2 GFLOP/s", "2000 MFLOP/s").replace('"1 Gbit/s"', '"125 MB/s"')
    assert load_cluster(write(tmp_path, text)).fingerprint() == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("500 MFLOP/s", "501 MFLOP/s"),
        ("2 Gbit/s", "3 Gbit/s"),
        ("50 us", "51 us"),
        ("1 GiB", "2 GiB"),
        ('emulation = "paced"', ""),
        ('["fast", "slow"]', '["slow", "fast"]'),
    ],
)
def test_whatever_changes_the_times_changes_the_fingerprint(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    before = load_cluster(write(tmp_path, GOOD)).fingerprint()
    assert load_cluster(write(tmp_path, GOOD.replace(old, new))).fingerprint() != before


# --- fewer, more, any number of ranks ----------------------------------------------------------------------------------


def test_as_many_ranks_as_devices_leave_the_cluster_as_it_is() -> None:
    assert load_cluster("mixed4").for_ranks(4) == load_cluster("mixed4")


def test_fewer_ranks_take_the_first_devices_under_a_name_of_their_own() -> None:
    whole, part = load_cluster("mixed4"), load_cluster("mixed4").for_ranks(3)
    assert part.name == "mixed4-first3"
    assert part.devices == whole.devices[:3]
    assert part.hosts == whole.hosts[:3]
    assert part.fingerprint() != whole.fingerprint()


def test_fewer_ranks_may_cut_through_a_host() -> None:
    part = load_cluster("two-fast-two-slow").for_ranks(3)
    assert part.host_of_rank == (0, 0, 1)
    assert [len(host.devices) for host in part.hosts] == [2, 1]


def test_more_ranks_than_devices_are_refused_with_the_number_that_works() -> None:
    with pytest.raises(SpecError, match=r"5 ranks but cluster 'mixed4' has 4 devices: start it with mpirun -n 4"):
        load_cluster("mixed4").for_ranks(5)


@pytest.mark.parametrize("name", ["mixed4", "this-machine"])
@pytest.mark.parametrize("num_ranks", [0, -1])
def test_a_job_of_no_ranks_is_refused(name: str, num_ranks: int) -> None:
    with pytest.raises(SpecError):
        load_cluster(name).for_ranks(num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 7])
def test_this_machine_has_as_many_devices_as_the_job_has_ranks(num_ranks: int) -> None:
    cluster = load_cluster("this-machine").for_ranks(num_ranks)
    assert len(cluster.devices) == num_ranks
    assert set(cluster.host_of_rank) == {0}
    assert cluster.for_ranks(num_ranks) == cluster


def test_this_machine_with_another_number_of_ranks_is_another_cluster() -> None:
    """A plan for two ranks must not be kept where one for three was."""
    names = {load_cluster("this-machine").for_ranks(num_ranks).name for num_ranks in (1, 2, 3)}
    assert len(names) == 3


def test_a_real_cluster_is_named_for_the_hardware_its_ranks_found() -> None:
    cluster = load_cluster("this-machine").for_ranks(2)
    here, there = cluster.on_hardware(["Xeon", "Xeon"]), cluster.on_hardware(["Xeon", "A100"])
    assert [device.name for device in there.devices] == ["Xeon", "A100"]
    assert here.fingerprint() != there.fingerprint()


def test_an_emulated_cluster_is_the_same_on_all_hardware() -> None:
    cluster = load_cluster("mixed4")
    assert cluster.on_hardware(["Xeon"] * 4) == cluster


@pytest.mark.parametrize(("name", "num_ranks"), [("mixed4", 2), ("this-machine", 3), ("two-fast-two-slow", 3)])
def test_a_part_of_a_cluster_is_found_by_the_name_that_it_has(name: str, num_ranks: int) -> None:
    part = load_cluster(name).for_ranks(num_ranks)
    assert load_cluster(part.name) == part == load_cluster(part.name).for_ranks(num_ranks)
    assert stated_name(part.name) == name == stated_name(name)


@pytest.mark.parametrize("name", ["mixed4-x2", "this-machine-first2", "mixed9-first2", "mixed4-first0", "mixed4-first"])
def test_a_part_that_no_job_makes_is_unknown(name: str) -> None:
    with pytest.raises(SpecError, match=f"unknown cluster '{name}'"):
        load_cluster(name)
