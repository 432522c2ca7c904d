"""Which address ranks listen on."""

from __future__ import annotations

import pytest

from autotune.runtime.control.address import leader_address, own_address, own_networks


def test_ranks_of_one_machine_listen_on_loopback_only() -> None:
    assert own_address([["10.0.0.1/24"]] * 2, rank=1, one_machine=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ([["10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),
        ([["172.17.0.1/16", "10.0.0.1/24"], ["172.17.0.1/16", "10.0.0.2/24"]], "10.0.0.1"),  # bridges of containers
        ([["192.168.1.1/24", "10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),
        ([["10.0.0.1/24"], ["10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),  # rank 1 is on the host of rank 0
        ([["10.0.0.1/24"], ["10.9.0.2/24"]], "10.0.0.1"),  # over a router
        ([[], ["10.9.0.2/24"]], None),
    ],
)
def test_rank_0_listens_where_the_others_reach_it(networks: list[list[str]], expected: str | None) -> None:
    assert leader_address(networks) == expected


def test_the_networks_of_this_host_have_no_loopback() -> None:
    assert not any(text.startswith("127.") for text in own_networks())
