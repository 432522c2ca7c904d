from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.jobs.advise import subsets
from autotune.jobs.advise.changes import Found, Planner
from autotune.jobs.advise.subsets import advise_subsets, make_pool
from autotune.workloads.changes.cluster_edits import Setting
from autotune.workloads.cluster import load_cluster


@dataclass
class SumOfSpeeds:
    """A planner for which devices add up, less a fiftieth per host."""

    num_planned: int = 0

    def best(self, setting: Setting) -> Found:
        self.num_planned += 1
        speed = sum(device.flops_per_s or 0.0 for device in setting.cluster.devices)
        forecast: Any = SimpleNamespace(samples_per_s=speed * (1.02 - 0.02 * len(setting.cluster.hosts)))
        return Found(forecast=forecast, limited_by="")


def found(name: str) -> tuple[list[subsets.Subset], bool, int]:
    planner = SumOfSpeeds()
    setting = Setting(cluster=load_cluster(name), global_batch=64)
    answer, is_complete = advise_subsets(cast("Planner", planner), setting, lambda _: None)
    return answer, is_complete, planner.num_planned


def test_every_subset_of_unlike_hosts():
    answer, is_complete, num_planned = found("mixed4")
    assert (is_complete, num_planned, len(answer)) == (True, 15, 15)
    assert answer[0].hosts == ("host0", "host1", "host2", "host3")
    rates = [subset.forecast.samples_per_s for subset in answer if subset.forecast]
    assert rates == sorted(rates, reverse=True)


def test_like_hosts_are_counted_not_chosen():
    answer, _, _ = found("uniform4")
    assert sorted(len(subset.hosts) for subset in answer) == [1, 2, 3, 4]


def test_hosts_stay_whole():
    pool = make_pool(Setting(cluster=load_cluster("two-beside-four"), global_batch=64))
    assert pool.all == (1, 1, 1)
    assert [len(pool.subset(counts).cluster.devices) for counts in ((1, 0, 0), (0, 1, 1))] == [4, 2]


def test_of_many_subsets_those_on_the_way_to_all(monkeypatch: pytest.MonkeyPatch):
    every, _, _ = found("mixed4")
    monkeypatch.setattr(subsets, "MOST_SUBSETS", 10)
    grown, is_complete, num_planned = found("mixed4")
    assert not is_complete
    assert num_planned <= 15
    assert grown[0].hosts == every[0].hosts
    assert {len(subset.hosts) for subset in grown} == {1, 2, 3, 4}


def test_names_differ_from_those_of_the_pool():
    setting = Setting(cluster=load_cluster("mixed4"), global_batch=64)
    assert make_pool(setting).subset((1, 1, 0, 0)).cluster.name == "2 of mixed4"
    assert replace(setting).cluster.name == "mixed4"
