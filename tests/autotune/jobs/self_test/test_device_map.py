"""The map of a job: one line for each rank, and what differs between ranks."""

from __future__ import annotations

from dataclasses import replace

from autotune.jobs.self_test.device_map import RankDevice, Software, judge_devices, judge_software, software
from autotune.jobs.self_test.finding import NOTE, OK, PROBLEM
from autotune.runtime.launch.device_choice import DeviceChoice

SAME = Software(versions={"python": "3.11.7", "torch": "2.13.0", "system": "Linux 6.1"}, variables={})
GPU = RankDevice(
    host="a",
    processor="a processor",
    num_threads=4,
    device=DeviceChoice(type="cuda", index=1, name="A100", uuid="GPU-17"),
    memory_bytes=80 << 30,
    free_bytes=79 << 30,
)


def test_this_rank_has_versions_and_no_other_variables() -> None:
    found = software()
    assert {"python", "torch", "system"} <= set(found.versions)
    assert "PATH" not in found.variables


def test_ranks_with_the_same_software_are_one_line() -> None:
    (found,) = judge_software([(0, SAME), (1, SAME)])
    assert found.state == OK
    assert "torch 2.13.0" in found.detail


def test_different_libraries_are_a_problem_that_names_the_ranks() -> None:
    other = replace(SAME, versions=SAME.versions | {"torch": "2.12.0", "system": "Linux 5.15"})
    found = judge_software([(0, SAME), (1, SAME), (2, other)])
    assert sorted(one.state for one in found) == [NOTE, OK, PROBLEM]
    details = " ".join(one.detail for one in found)
    assert "torch 2.13.0 on ranks 0, 1; torch 2.12.0 on rank 2" in details
    assert "system Linux 6.1 on ranks 0, 1; system Linux 5.15 on rank 2" in details


def test_variables_that_differ_are_a_note_unless_each_rank_has_its_own() -> None:
    one = replace(SAME, variables={"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0"})
    two = replace(SAME, variables={"CUDA_VISIBLE_DEVICES": "1"})
    found = judge_software([(0, one), (1, two)])
    assert [entry.state for entry in found] == [OK, NOTE]
    assert found[1].detail == "NCCL_P2P_DISABLE=1 on rank 0; NCCL_P2P_DISABLE=not set on rank 1"


def test_each_rank_has_a_line_with_its_device() -> None:
    cpu = replace(GPU, device=DeviceChoice(), memory_bytes=None, free_bytes=None)
    found = judge_devices([(0, GPU), (1, cpu)])
    assert [one.what for one in found] == ["rank 0", "rank 1"]
    assert found[0].detail == "on host a: cuda:1 A100 (GPU-17), 80 GiB, 79 GiB free"
    assert found[1].detail == "on host a: CPU (a processor), 4 threads"
