"""`autotune init` on the ranks of a job: one host with a device for each, and the link between them as probes time it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from autotune.workloads.cluster import load_cluster
from tests.mpi.launch import autotune, refused


@pytest.mark.mpi
def test_a_file_with_measured_links(tmp_path: Path) -> None:
    done = autotune(2, "init", "--measure", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["file"] == "cluster.toml"
    cluster = load_cluster(str(tmp_path / "cluster.toml"))
    (host,) = cluster.hosts
    assert host.name == socket.gethostname()
    assert len(host.devices) == 2
    assert host.fabric is not None
    assert host.fabric.device is not None
    assert 1e6 < host.fabric.device.up_bytes_per_s < 1e12
    assert any("fabric" in branch["label"] for branch in document["tree"]["below"][0]["below"])
    refused(autotune(2, "init", cwd=tmp_path), "'cluster.toml' exists", "--output")
