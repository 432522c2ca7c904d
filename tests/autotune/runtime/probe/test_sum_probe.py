"""Sums over a real group are right; a defect of one rank is found on the ranks that have its result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.probe.sum_probe import SumFacts, check_sums
from autotune.runtime.probe.timed_collectives import GroupMember
from tests.gloo_ranks import on_ranks

CPU = torch.device("cpu")


def checked(group: Any) -> SumFacts:
    return check_sums(GroupMember(group=group, device=CPU))


class Defective:
    """A group with one kind of result wrong on rank 1."""

    def __init__(self, group: Any, kind: str) -> None:
        self._group, self._kind = group, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        work = self._group.allreduce(tensors, options)
        if self._kind == str(tensors[0].dtype) and self.rank() == 1:
            work.wait()
            tensors[0][-1] += 1
        return work


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_that_works(size: int) -> None:
    found = on_ranks(size, checked)
    assert all(isinstance(one, SumFacts) and one.wrong == () and one.num_checked == 13 for one in found), found
    assert all(one.all_reduce_s > 0 for one in found)


@pytest.mark.parametrize(("kind", "words"), [("torch.float32", "all-reduce of 4 B"), ("torch.bfloat16", "in bfloat16")])
def test_a_wrong_element_is_found_on_its_rank(kind: str, words: str) -> None:
    def run(group: dist.ProcessGroup) -> SumFacts:
        return checked(Defective(group, kind))

    right, wrong = on_ranks(2, run)
    assert right.wrong == ()
    assert words in wrong.wrong[0]
    assert "1 of" in wrong.wrong[0]
