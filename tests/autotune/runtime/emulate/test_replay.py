"""A replayed scenario sets the surroundings of a rank once per change, and restores them at the end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from autotune.lab import hosts
from autotune.lab.hosts import lab_of
from autotune.lab.replay import lab_surroundings
from autotune.results.store.store import write_json
from autotune.runtime.emulate.replay import Replay
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario, parse_scenario
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import SpecError

MIXED = load_cluster("mixed4")


def replay(scenario: str, rank: int = 0) -> tuple[Replay, list[Cluster]]:
    changes: list[Cluster] = []
    return Replay(ChangingCluster(MIXED, load_scenario(scenario)), rank, changes.append), changes


def bandwidth(cluster: Cluster) -> float:
    assert cluster.hosts[0].link is not None
    return cluster.hosts[0].link.up_bytes_per_s


def test_a_change_is_set_once_and_restored_at_the_end() -> None:
    replayed, changes = replay("bandwidth-swing")
    for step in range(100):
        replayed.enter(num_steps=step, trained_s=0.0)
    replayed.leave()
    assert [bandwidth(cluster) for cluster in changes] == [125e6, 31.25e6, 125e6, 125e6]
    assert changes[-1] is MIXED


def test_two_interleaved_trainers_have_the_same_changes() -> None:
    replayed, changes = replay("link-drop")
    for step in (38, 38, 39, 39, 40, 40):
        replayed.enter(num_steps=step, trained_s=0.0)
    assert len(changes) == 1
    replayed.enter(num_steps=39, trained_s=0.0)
    assert len(changes) == 2, "a trainer that is behind gets the cluster of its own step"
    assert changes[-1] is MIXED


def test_a_rank_gets_its_own_device() -> None:
    speeds = [replay("busy-neighbour", rank)[0].enter(num_steps=50, trained_s=0.0).flops_per_s for rank in (0, 1)]
    assert speeds[0] == pytest.approx(0.8e9, rel=1e-3)
    assert speeds[1] == 1.6e9


def test_time_is_seconds_of_training() -> None:
    data = {"clock": "time", "change": [{"at": 2.0, "rank": 0, "speed": 0.5}]}
    replayed = Replay(ChangingCluster(MIXED, parse_scenario(data, where="t", name="t")), 0, lambda _: None)
    assert replayed.enter(num_steps=50, trained_s=1.9).flops_per_s == 2.4e9
    assert replayed.enter(num_steps=1, trained_s=2.0).flops_per_s == 1.2e9


def test_a_scenario_needs_the_lab_of_its_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "STATE_FOLDER", tmp_path)
    with pytest.raises(SpecError, match="not up"):
        lab_surroundings("here", MIXED, 0)
    lab = lab_of(load_cluster("two-fast-two-slow"), "here")
    lab.folder.mkdir()
    write_json(lab.folder / hosts.DESCRIPTION, lab)
    monkeypatch.setattr(socket, "gethostname", lambda: "host1")
    with pytest.raises(SpecError, match="rank 0 runs on lab host 'host1', but in cluster 'mixed4' it is on 'host0'"):
        lab_surroundings("here", MIXED, 0)
