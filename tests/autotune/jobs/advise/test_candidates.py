from __future__ import annotations

from dataclasses import replace

from autotune.jobs.advise.candidates import as_edits, usual_changes
from autotune.workloads.changes.cluster_edits import Setting, edited
from autotune.workloads.cluster import cluster_names, load_cluster


def usual(name: str, **given) -> list[str]:
    return [edit for (edit,) in usual_changes(Setting(cluster=load_cluster(name), global_batch=64, **given))]


def test_the_usual_changes_of_unlike_devices():
    assert set(usual("mixed4")) >= {"add=full", "add=quarter", "remove=host3", "replace=host3:full", "bandwidth*2"}


def test_like_hosts_are_removed_once_and_a_slow_link_is_made_as_fast_as_the_others():
    found = usual("slow-link4")
    assert [edit for edit in found if edit.startswith("remove")] == ["remove=host2", "remove=host3"]
    assert "bandwidth.host3*5" in found
    assert not any(edit.startswith("replace") for edit in found)


def test_devices_of_a_pool():
    assert "add=large" in usual("mixed4", pool=load_cluster("two-beside-four"))


def test_every_usual_change_of_every_shipped_cluster_can_be_made():
    for name in cluster_names():
        cluster = load_cluster(name)
        setting = Setting(cluster=cluster.for_ranks(2) if cluster.any_ranks else cluster, global_batch=64)
        for edits in usual_changes(setting):
            assert edited(setting, edits) != replace(setting)


def test_edits_of_one_change():
    assert as_edits(["add=fast, bandwidth*2", "remove=host1"]) == [("add=fast", "bandwidth*2"), ("remove=host1",)]
