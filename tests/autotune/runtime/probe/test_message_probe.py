"""Messages between all pairs, or along powers of two; what does not arrive, or arrives changed, is named by both ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.probe.message_probe import MOST_FOR_ALL_PAIRS, MessageFacts, distances, exchange_messages
from autotune.runtime.probe.timed_collectives import GroupMember
from tests.gloo_ranks import on_ranks

CPU = torch.device("cpu")


def exchanged(group: Any, timeout_s: float = 10.0) -> MessageFacts:
    return exchange_messages(GroupMember(group=group, device=CPU), timeout_s)


class Defective:
    """A group in which rank 0 sends to rank 1 nothing, or something else."""

    def __init__(self, group: Any, *, changes: bool) -> None:
        self._group, self._changes = group, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Any:
        if self.rank() == 0 and target == 1:
            if not self._changes:
                return None
            tensors[0][5] += 1
        return self._group.send(tensors, target, tag)


def test_all_pairs_in_a_small_job_and_few_in_a_large_one() -> None:
    assert distances(4) == [1, 2, 3]
    assert distances(MOST_FOR_ALL_PAIRS + 8) == [1, 2, 4, 8, 16]
    assert distances(64) == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("size", [2, 3, 10])
def test_every_message_arrives(size: int) -> None:
    for found in on_ranks(size, exchanged):
        assert (found.missing, found.wrong) == ((), ()), found
        assert found.num_expected == len(distances(size))
        assert found.slowest_s > 0


def test_a_message_that_is_not_sent_is_missing_and_the_others_arrive() -> None:
    def run(group: dist.ProcessGroup) -> MessageFacts:
        return exchanged(Defective(group, changes=False), timeout_s=1.0)

    found = on_ranks(3, run)
    assert [(one.missing, one.wrong) for one in found] == [((), ()), ((0,), ()), ((), ())]


def test_a_message_that_is_changed() -> None:
    def run(group: dist.ProcessGroup) -> MessageFacts:
        return exchanged(Defective(group, changes=True))

    found = on_ranks(2, run)
    assert [(one.missing, one.wrong) for one in found] == [((), ()), ((), (0,))]
