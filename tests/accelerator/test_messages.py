"""Messages from rank to rank: none of our patterns waits for itself, and on NCCL's one queue per pair each would.

In jobs, messages of accelerators are staged over the host, where they are matched by tag. Here each pattern runs so, with
the CPU's result, and again with its messages in the queues of the fake NCCL, where both ranks receive or send first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.device import handle
from autotune.runtime.placed.mailbox import Mailbox
from autotune.runtime.probe.timed_collectives import GroupMember, Message
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.staged_group import StagedGroup
from tests.accelerator import jobs, streams
from tests.accelerator.test_pipelines import plan_of as stages_of
from tests.accelerator.test_pipelines import train as train_stages
from tests.accelerator.test_trainers import NUM_STEPS, on_cpus
from tests.accelerator.threads import on_device_ranks
from tests.gloo_ranks import gloo_group

DEADLOCK = "both (send|receive) first"


@contextmanager
def joined(store: Any, fake: Any, *, is_direct: bool) -> Any:
    """A rank's group as in a job, or with messages in NCCL's queues."""
    device = torch.device(streams.NAME, fake.rank())
    gloo = gloo_group(dist.PrefixStore("messages", store), fake.rank(), fake.size())
    with jobs.beside(StagedGroup(gloo, handle(device)), store, "beside", is_direct=is_direct) as group:
        yield group, device


def outcome(run: Callable[[Any, torch.device], Any], *, is_direct: bool, size: int = 2) -> list[Any]:
    """What the ranks have, or how they failed."""
    store = dist.HashStore()

    def on_rank(fake: Any) -> Any:
        with joined(store, fake, is_direct=is_direct) as (group, device):
            return run(group, device)

    return on_device_ranks(size, on_rank, timeout_s=5.0)


def texts(found: list[Any]) -> str:
    return " ".join(f"{type(one).__name__}: {one}" for one in found if isinstance(one, Exception))


@pytest.mark.parametrize("codec", ["topk", "int8", "factors"])
def test_what_codecs_gather_and_swap(codec: str) -> None:
    job, plan, expected = on_cpus("mlp", "scheduled", codec, "")
    assert jobs.away(jobs.device_ranks(job, plan, NUM_STEPS, over=jobs.NCCL), expected) < 1e-10
    with pytest.raises(Exception, match=DEADLOCK):
        jobs.device_ranks(job, plan, 2, over=jobs.QUEUES)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.75, 0.25)])
def test_owner_shards(shares: tuple[float, ...]) -> None:
    def summed(group: Any, device: torch.device) -> Any:
        shards = ShardGroup(group, shares)
        tensor = torch.arange(12.0, device=device) * (group.rank() + 1)
        try:
            shards.allreduce([tensor]).wait()
            handle(device).synchronize()
            return tensor.to("cpu").tolist()
        finally:
            shards.close().join()

    assert outcome(summed, is_direct=False) == [[3.0 * number for number in range(12)]] * 2
    assert "first" in texts(outcome(summed, is_direct=True))


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_stages(schedule: str) -> None:
    job = jobs.workload("mlp")
    plan, graph = stages_of(job, schedule)

    def trained(group: Any, device: torch.device) -> Any:
        return train_stages(job, plan, graph, group, device)

    assert texts(outcome(trained, is_direct=False, size=3)) == ""
    assert "first" in texts(outcome(trained, is_direct=True, size=3))


def test_shards_of_a_block() -> None:
    def swapped(group: Any, device: torch.device) -> Any:
        mailbox = Mailbox(group, {}, timeout_s=20.0, device=device)
        found = mailbox.swap(torch.full((3,), float(group.rank()), device=device), (0, 1), 0)
        return [found[rank].to("cpu").tolist() for rank in (0, 1)]

    assert outcome(swapped, is_direct=False) == [[[0.0] * 3, [1.0] * 3]] * 2
    assert "both receive first" in texts(outcome(swapped, is_direct=True))


def test_probes_of_a_link() -> None:
    def probed(group: Any, device: torch.device) -> Any:
        message = Message(GroupMember(group=group, device=device), 0, 1)
        return message.check(64), message.loop(64, 3) > 0

    assert outcome(probed, is_direct=False) == [(0, True), (0, False)]
    assert "first" in texts(outcome(probed, is_direct=True))
