"""One cache of process groups: opened once per configuration and use, owner shares moved, all closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from autotune.runtime.transport.group_cache import GroupCache
from autotune.runtime.transport.groups import Groups
from autotune.workloads.plan import CommPlan

RING, SHARDS = CommPlan(), CommPlan(collective="shards", shares=(0.25, 0.75))
OTHER_OWNERS = replace(SHARDS, shares=(0.5, 0.5))


class FakeGroups:
    """Opens names instead of process groups, and records what happens to them."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, str, dict[str, Any]]] = []
        self.closed: list[tuple[str, bool]] = []
        self.owners: list[tuple[str, tuple[float, ...]]] = []
        self.cache: GroupCache | None = None
        self.held_at_close: list[int] = []

    @contextmanager
    def open(self, transport: str, **options: Any) -> Iterator[str]:
        name = f"group {len(self.opened)}"
        self.opened.append((name, transport, options))
        failed = True
        try:
            yield name
            failed = False
        finally:
            assert self.cache is not None
            self.held_at_close.append(len(self.cache._open))
            self.closed.append((name, failed))

    def set_owners(self, group: str, shares: tuple[float, ...]) -> None:
        self.owners.append((group, shares))


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


def cache_of(groups: FakeGroups, *, traced: bool = False) -> GroupCache:
    groups.cache = GroupCache(cast("Groups", groups), timeout_s=7.0, traced=traced)
    return groups.cache


def test_a_configuration_is_opened_once(groups: FakeGroups) -> None:
    """Settings of the reducer, such as the bucket size, do not need another group."""
    with cache_of(groups, traced=True) as cache:
        assert cache.get(RING) == cache.get(replace(RING, bucket_bytes=1 << 20)) == cache.switch(RING) == "group 0"
        assert cache.get(replace(RING, transport="mpi")) == "group 1"
        assert cache.get(replace(RING, collective="server", servers=(1,))) == "group 2"
    assert [transport for _, transport, _ in groups.opened] == ["gloo", "mpi", "gloo"]
    first = groups.opened[0][2]
    assert first == {"collective": "ring", "servers": (), "shares": (), "timeout_s": 7.0, "traced": True}
    assert groups.opened[2][2]["servers"] == (1,)


def test_uses_do_not_share_a_group(groups: FakeGroups) -> None:
    with cache_of(groups) as cache:
        assert [cache.get(RING), cache.get(RING, "means"), cache.get(RING, "plan 1")] == [
            "group 0",
            "group 1",
            "group 2",
        ]
        assert cache.switch(RING, "means") == "group 1"


def test_interleaved_plans_with_other_owners_have_groups_of_their_own(groups: FakeGroups) -> None:
    with cache_of(groups) as cache:
        assert [cache.get(SHARDS), cache.get(OTHER_OWNERS), cache.get(SHARDS)] == ["group 0", "group 1", "group 0"]
    assert groups.owners == []


def test_a_switch_moves_owners_instead_of_opening_a_group(groups: FakeGroups) -> None:
    with cache_of(groups) as cache:
        assert cache.get(SHARDS) == "group 0"
        assert cache.switch(OTHER_OWNERS) == cache.switch(OTHER_OWNERS) == "group 0"
        assert groups.owners == [("group 0", (0.5, 0.5))]
        assert cache.switch(SHARDS) == "group 0"
        assert cache.switch(replace(SHARDS, shares=())) == "group 0"
    assert groups.owners[1:] == [("group 0", (0.25, 0.75)), ("group 0", ())]
    assert len(groups.opened) == 1


def test_the_end_closes_all_groups_in_reverse_and_holds_none(groups: FakeGroups) -> None:
    with cache_of(groups) as cache:
        for use in ("", "means", "batch norm"):
            cache.get(RING, use)
    assert groups.closed == [("group 2", False), ("group 1", False), ("group 0", False)]
    assert groups.held_at_close == [0, 0, 0]


def test_an_error_reaches_every_group(groups: FakeGroups) -> None:
    """A group that closes after a failure informs its peers."""
    cache = cache_of(groups)
    cache.get(RING)
    cache.get(SHARDS)
    with pytest.raises(ValueError, match="model"), cache:
        raise ValueError("the model fails")
    assert groups.closed == [("group 1", True), ("group 0", True)]
