"""Which device each rank takes, and what is said where ranks and accelerators do not fit."""

from __future__ import annotations

from itertools import product

import pytest

from autotune.runtime.launch.device_choice import CPU, DeviceChoice, RankPlace, VisibleDevices, choose_devices


def visible(*uuids: str, kind: str = "cuda") -> VisibleDevices:
    return VisibleDevices(type=kind, names=tuple(f"card {uuid}" for uuid in uuids), uuids=uuids)


def anonymous(count: int) -> VisibleDevices:
    return VisibleDevices(type="cuda", names=("card",) * count, uuids=("",) * count)


def host(name: str, *sees: VisibleDevices, local: bool = True) -> list[RankPlace]:
    return [RankPlace(host=name, local_rank=i if local else None, visible=one) for i, one in enumerate(sees)]


NOTHING = VisibleDevices()


def taken(places: list[RankPlace]) -> list[int | None]:
    return [choice.index for choice in choose_devices(places).ranks]


def test_a_job_on_cpus_has_nothing_to_say() -> None:
    found = choose_devices(host("a", NOTHING, NOTHING))
    assert found.ranks == (DeviceChoice(), DeviceChoice())
    assert found.notes == ()


@pytest.mark.parametrize("local", [True, False])
def test_a_rank_takes_the_device_at_its_place_on_its_host(local: bool) -> None:
    both = visible("A", "B"), visible("A", "B")
    others = visible("C", "D"), visible("C", "D")
    found = choose_devices([*host("a", *both, local=local), *host("b", *others, local=local)])
    assert [choice.uuid for choice in found.ranks] == ["A", "B", "C", "D"]
    assert [choice.index for choice in found.ranks] == [0, 1, 0, 1]
    assert (found.notes, found.is_mixed) == ((), False)


def test_ranks_dealt_round_over_hosts_go_by_local_rank() -> None:
    first, second = host("a", visible("A", "B"), visible("A", "B")), host("b", visible("C", "D"), visible("C", "D"))
    assert taken([first[0], second[0], first[1], second[1]]) == [0, 0, 1, 1]
    assert taken([first[1], first[0]]) == [1, 0]


def test_more_ranks_than_accelerators() -> None:
    found = choose_devices([*host("a", visible("X")), *host("b", *[visible("A", "B")] * 3)])
    assert [choice.index for choice in found.ranks] == [0, 0, 1, None]
    assert found.notes[0] == "rank 3 on host b takes the CPU: the host has 2 accelerators for 3 ranks"
    assert found.notes[1] == "this is a mixed job of 4 ranks: 3 on cuda, 1 on the CPU"
    assert found.is_mixed


def test_one_visible_accelerator_per_rank_is_index_0_of_each() -> None:
    found = choose_devices(host("a", visible("A"), visible("B")))
    assert [(choice.index, choice.uuid) for choice in found.ranks] == [(0, "A"), (0, "B")]
    assert found.notes == ()


def test_the_same_accelerator_for_two_ranks() -> None:
    found = choose_devices(host("a", visible("A"), visible("A")))
    assert [choice.index for choice in found.ranks] == [0, None]
    assert "rank 1 on host a takes the CPU: cuda:0 (card A, A) is taken by rank 0" in found.notes[0]
    assert "give each rank its own" in found.notes[0]


def test_two_containers_that_see_the_same_accelerator() -> None:
    found = choose_devices([*host("a", visible("A")), *host("b", visible("A"))])
    assert [choice.index for choice in found.ranks] == [0, None]
    assert "rank 1 on host b takes the CPU: cuda:0 (card A, A) is taken by rank 0" in found.notes[0]


def test_no_accelerator_on_some_ranks_and_hosts() -> None:
    found = choose_devices([*host("a", visible("A", "B"), NOTHING), *host("b", NOTHING)])
    assert [choice.type for choice in found.ranks] == ["cuda", CPU, CPU]
    assert found.notes[0].startswith(
        "rank 1 on host a takes the CPU: it sees none of the 2 accelerators that other ranks"
    )
    assert "CUDA_VISIBLE_DEVICES" in found.notes[0]
    assert found.notes[1] == "rank 2 on host b takes the CPU: the host has no accelerator that torch can use"


def test_devices_without_uuid_are_identified_by_index_or_by_rank() -> None:
    assert taken(host("a", anonymous(2), anonymous(2))) == [0, 1]
    dealt = choose_devices(host("a", anonymous(1), anonymous(1)))
    assert [choice.index for choice in dealt.ranks] == [0, 0]
    assert dealt.notes == (
        "each rank on host a sees one accelerator, without a UUID: that no two ranks share one cannot be checked",
    )
    assert choose_devices(host("a", anonymous(1))).notes[1:] == ()


def test_mixed_vendors() -> None:
    found = choose_devices([*host("a", visible("A")), *host("b", visible("X", kind="xpu")), *host("c", NOTHING)])
    assert [choice.type for choice in found.ranks] == ["cuda", "xpu", CPU]
    assert found.notes[-1] == "this is a mixed job of 3 ranks: 1 on cuda, 1 on xpu, 1 on the CPU"


def test_as_many_ranks_as_possible_have_an_accelerator() -> None:
    """Against every assignment, for all ways in which three ranks see subsets of three devices."""
    subsets = ["".join(each) for each in product(*(("", name) for name in "ABC"))]
    for views in product(subsets, repeat=3):
        places = host("a", *(visible(*view) if view else NOTHING for view in views))
        best = max(
            sum(device is not None for device in devices)
            for devices in product(*([None, *view] for view in views))
            if len({d for d in devices if d}) == sum(d is not None for d in devices)
        )
        found = choose_devices(places)
        uuids = [choice.uuid for choice in found.ranks if choice.index is not None]
        assert len(uuids) == len(set(uuids)) == best, views
        assert all(not c.uuid or c.uuid in view for c, view in zip(found.ranks, views, strict=True))
        left = [rank for rank, choice in enumerate(found.ranks) if choice.index is None]
        said = [note for note in found.notes if "takes the CPU" in note]
        assert len(said) == (len(left) if any(views) else 0)
