"""A scenario gives the cluster at any position, and refuses changes that the cluster cannot make."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest

from autotune.workloads.changes.scenario import ChangingCluster, Scenario
from autotune.workloads.changes.scenario_file import load_scenario, parse_scenario, scenario_names
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import SpecError

MIXED = load_cluster("mixed4")
GBIT = 125e6


def scenario(**tables: Any) -> Scenario:
    return parse_scenario(tables, where="t.toml", name="t")


def speeds(cluster: Cluster) -> list[float]:
    """Of each rank, relative to what mixed4 states."""
    now = [device.flops_per_s or 0.0 for device in cluster.devices]
    stated = [device.flops_per_s or 1.0 for device in MIXED.devices]
    return [a / b for a, b in zip(now, stated, strict=True)]


def bandwidths(cluster: Cluster) -> list[float]:
    return [host.link.up_bytes_per_s / GBIT for host in cluster.hosts if host.link is not None]


def test_all_shipped_traces_run_on_a_paced_cluster() -> None:
    assert scenario_names() == [
        "bandwidth-swing",
        "busy-neighbour",
        "link-drop",
        "random-walk",
        "speed-drift",
        "steady",
    ]
    for name in scenario_names():
        assert load_scenario(name).description
        ChangingCluster(MIXED, load_scenario(name)).at(10_000)


def test_bandwidth_of_all_hosts_swings_half_the_time_each() -> None:
    cluster = ChangingCluster(MIXED, load_scenario("bandwidth-swing"))
    states = [bandwidths(cluster.at(step)) for step in range(240)]
    assert all(len(set(state)) == 1 for state in states)
    assert [state[0] for state in states] == ([1.0] * 40 + [0.25] * 40) * 3


def test_one_link_drops_to_a_fifth_of_its_own() -> None:
    both = ChangingCluster(load_cluster("mixed-both4"), load_scenario("link-drop"))
    assert bandwidths(both.at(39)) == [1.0, 1.0, 0.5, 0.2]
    assert bandwidths(both.at(40)) == bandwidths(both.at(4000)) == [1.0, 0.2, 0.5, 0.2]


def test_a_busy_neighbour_moves_on_after_forty_steps() -> None:
    cluster = ChangingCluster(MIXED, load_scenario("busy-neighbour"))
    slow = pytest.approx(1 / 3, rel=1e-3)
    for step, expected in (
        (39, [1, 1]),
        (40, [slow, 1]),
        (79, [slow, 1]),
        (80, [1, slow]),
        (119, [1, slow]),
        (120, [1, 1]),
    ):
        assert speeds(cluster.at(step))[:2] == expected
        assert speeds(cluster.at(step + 160))[:2] == expected


def test_drift_is_slow_and_ends_where_it_says() -> None:
    cluster = ChangingCluster(MIXED, load_scenario("speed-drift"))
    course = [speeds(cluster.at(step)) for step in range(0, 201, 10)]
    assert course[0] == [1.0] * 4
    assert course[-1] == pytest.approx([0.4, 0.7, 0.7, 0.7])
    assert all(0 < a[1] - b[1] < 0.02 for a, b in pairwise(course))
    assert cluster.at(5000) is cluster.at(200)


def test_a_walk_is_the_same_for_everyone_and_stays_in_bounds() -> None:
    first, again = (ChangingCluster(MIXED, load_scenario("random-walk")) for _ in range(2))
    states = [bandwidths(first.at(step)) for step in range(0, 400, 20)]
    assert states == [bandwidths(again.at(step)) for step in range(0, 400, 20)]
    assert len({tuple(state) for state in states}) == 20
    assert all(0.25 <= value <= 1.0 for state in states for value in state)
    assert len(set(states[-1])) > 1, "each host walks by itself"
    other = scenario(walk=[{"seed": 9, "every": 20, "until": 400, "host": "*", "bandwidth": [0.25, 1.0]}])
    assert bandwidths(ChangingCluster(MIXED, other).at(100)) != states[5]


def test_a_cluster_between_changes_is_one_value() -> None:
    cluster = ChangingCluster(MIXED, load_scenario("bandwidth-swing"))
    assert cluster.at(41) is cluster.at(79)
    assert ChangingCluster(MIXED, load_scenario("steady")).at(12) is MIXED


def test_time_counts_seconds_of_training_and_steps_count_steps() -> None:
    change = [{"at": 2, "rank": 0, "speed": 0.5}]
    by_step = ChangingCluster(MIXED, scenario(change=change)).course([0.5] * 6)
    by_time = ChangingCluster(MIXED, scenario(change=change, clock="time")).course([0.5] * 6)
    assert [speeds(cluster)[0] for cluster in by_step] == [1, 1, 0.5, 0.5, 0.5, 0.5]
    assert [speeds(cluster)[0] for cluster in by_time] == [1, 1, 1, 1, 0.5, 0.5]


def test_a_slower_device_is_slower_in_everything() -> None:
    device = dataclasses.replace(MIXED.devices[0], launch_s=1e-5)
    host = dataclasses.replace(MIXED.hosts[0], devices=(device,))
    cluster = dataclasses.replace(MIXED, hosts=(host, *MIXED.hosts[1:]))
    slow = ChangingCluster(cluster, scenario(change=[{"at": 0, "rank": 0, "speed": 0.5}])).at(0).devices[0]
    assert (slow.flops_per_s, slow.memory_bytes_per_s, slow.launch_s) == (1.2e9, 1.2e9, 2e-5)
    assert slow.memory_bytes == device.memory_bytes


def test_the_second_device_of_a_host_can_change_alone() -> None:
    pairs = load_cluster("two-fast-two-slow")
    changed = ChangingCluster(pairs, scenario(change=[{"at": 0, "rank": 3, "speed": 0.5}])).at(0)
    assert changed.devices[:3] == pairs.devices[:3]
    assert changed.devices[3].flops_per_s == 0.4e9


def test_cores_change_in_a_lab_only() -> None:
    cores = scenario(change=[{"at": 5, "host": "host2", "cpus": 0.25}])
    lab = dataclasses.replace(MIXED, in_lab=True)
    assert [host.cpus for host in ChangingCluster(lab, cores).at(5).hosts] == [None, None, 0.25, None]
    with pytest.raises(SpecError, match="no lab"):
        ChangingCluster(MIXED, cores)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"clock": "stpe"}, "did you mean 'step'"),
        ({"changes": []}, "did you mean 'change'"),
        ({"change": {"at": 1}}, "two brackets"),
        ({"change": [3]}, "must be a table"),
        ({"change": [{"at": 1, "rank": 0}]}, "nothing to change"),
        ({"change": [{"at": 1, "rank": 0, "bandwidth": 0.5}]}, "lacks host"),
        ({"change": [{"rank": 0, "speed": 0.5}]}, "lacks at"),
        ({"change": [{"at": 1, "rank": 0, "speed": 0.5, "cpus": 1}]}, "speed"),
        ({"change": [{"at": -1, "rank": 0, "speed": 0.5}]}, "at is -1"),
        ({"change": [{"at": 1, "rank": 0, "speed": 0}]}, "above 0"),
        ({"change": [{"at": 1, "rank": 0, "speed": "fast"}]}, "'fast'"),
        ({"change": [{"at": 1, "rank": 0.5, "speed": 1}]}, "rank is 0.5"),
        ({"change": [{"at": 1, "host": 0, "bandwidth": "5 bananas"}]}, "5 bananas"),
        ({"period": 40, "change": [{"at": 40, "rank": 0, "speed": 0.5}]}, "period longer"),
        ({"drift": [{"from": 9, "until": 3, "every": 1, "rank": 0, "speed": [1, 2]}]}, "forward"),
        ({"drift": [{"from": 0, "until": 3, "every": 1, "rank": 0, "speed": 0.5}]}, "two numbers"),
        ({"walk": [{"seed": 1, "every": 0, "until": 3, "rank": 0, "speed": [1, 2]}]}, "every is 0"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        scenario(**tables)


@pytest.mark.parametrize(
    ("cluster", "change", "words"),
    [
        ("mixed4", {"rank": 7, "speed": 0.5}, "4 ranks"),
        ("mixed4", {"host": "nowhere", "bandwidth": 0.5}, "host0, host1"),
        ("this-machine", {"rank": 0, "speed": 0.5}, "devices are real"),
        ("this-machine", {"host": 0, "bandwidth": 0.5}, "links are real"),
    ],
)
def test_a_trace_that_the_cluster_cannot_follow_is_refused(cluster: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ChangingCluster(load_cluster(cluster), scenario(change=[{"at": 0, **change}]))


def test_an_unknown_trace_is_refused() -> None:
    with pytest.raises(SpecError, match="did you mean 'link-drop'"):
        load_scenario("link-drops")
