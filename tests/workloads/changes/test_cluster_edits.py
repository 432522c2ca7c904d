from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.workloads.changes.cluster_edits import Setting, edited
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import AutotuneError

MIXED = Setting(cluster=load_cluster("mixed4"), global_batch=64)


def test_bandwidth_of_all_and_of_one():
    doubled = edited(MIXED, ["bandwidth*2"])
    assert {host.link.up_bytes_per_s for host in doubled.cluster.hosts} == {250e6}
    one = edited(MIXED, ["bandwidth.host3=200 Mbit/s"])
    assert [host.link.down_bytes_per_s for host in one.cluster.hosts] == [125e6, 125e6, 125e6, 25e6]


def test_latency():
    assert edited(MIXED, ["latency.host1=1 ms"]).cluster.hosts[1].link.latency_s == 0.001
    assert edited(MIXED, ["latency*10"]).cluster.hosts[0].link.latency_s == pytest.approx(5e-4)


def test_a_faster_device_has_a_name_that_no_profile_knows():
    changed = edited(MIXED, ["speed.rank3*4"]).cluster.devices
    assert [device.flops_per_s for device in changed] == [2.4e9, 1.6e9, 1.2e9, 2.4e9]
    assert changed[3].name == "quarter*4"
    assert {device.flops_per_s for device in edited(MIXED, ["speed.full*2"]).cluster.devices} >= {4.8e9, 1.6e9}


def test_one_more_and_one_less():
    more = edited(MIXED, ["add=full"]).cluster
    assert [device.name for device in more.devices][-1] == "full"
    assert len({host.name for host in more.hosts}) == 5
    assert len(edited(MIXED, ["remove=host3"]).cluster.devices) == 3


def test_a_host_keeps_its_place_with_other_devices():
    changed = edited(MIXED, ["replace=host3:full"]).cluster
    assert [device.name for device in changed.devices] == ["full", "two-thirds", "half", "full"]
    assert [host.link for host in changed.hosts] == [host.link for host in MIXED.cluster.hosts]


def test_devices_of_a_pool_can_be_added():
    pooled = replace(MIXED, pool=load_cluster("two-beside-four"))
    more = edited(pooled, ["add=large"]).cluster
    assert more.devices[-1].flops_per_s == 1.6e9
    assert more.hosts[-1].link.up_bytes_per_s == 50e6
    four = edited(pooled, ["add=one-of-four"]).cluster
    assert len(four.devices) == 5, "one device, not its whole host"
    with pytest.raises(AutotuneError, match="large"):
        edited(MIXED, ["add=large"])


def test_edits_follow_each_other_and_name_the_cluster():
    changed = edited(MIXED, ["add=quarter", "batch=128"])
    assert (len(changed.cluster.devices), changed.global_batch) == (5, 128)
    assert changed.cluster.name == "mixed4 with add=quarter, batch=128"
    assert edited(MIXED, []) == MIXED


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("", "is no edit"),
        ("bandwidth", "is no edit"),
        ("bandwidth*0", "no factor above zero"),
        ("bandwidth*-2", "no factor above zero"),
        ("bandwidth*nan", "no factor above zero"),
        ("bandwidth=2", "number and a unit"),
        ("bandwidth.host9*2", "host9"),
        ("speed=2", "is multiplied"),
        ("speed.rank7*2", "rank7"),
        ("add=ful", "full"),
        ("remove=host9", "host9"),
        ("replace=host0", "a host and a device"),
        ("replace=host9:full", "host9"),
        ("replace=host0:ful", "full"),
        ("batch=0", "whole number"),
        ("batch=1.5", "whole number"),
        ("memory*2", "is no edit"),
    ],
)
def test_what_is_no_edit_is_refused_with_the_remedy(edit, said):
    with pytest.raises(AutotuneError, match=said):
        edited(MIXED, [edit])


def test_a_cluster_needs_a_host():
    with pytest.raises(AutotuneError, match="leaves no host"):
        edited(MIXED, [f"remove=host{number}" for number in range(4)])


def test_links_that_are_not_stated_cannot_be_changed():
    with pytest.raises(AutotuneError, match="states no such link"):
        edited(Setting(cluster=load_cluster("this-machine").for_ranks(2), global_batch=64), ["bandwidth*2"])
