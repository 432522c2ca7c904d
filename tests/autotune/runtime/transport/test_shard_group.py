"""Owner shards against a plain sum in rank order, bitwise. Ranks are threads of this process, connected by gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.runtime.transport import shard_group
from autotune.runtime.transport.shard_group import ShardGroup, cut
from autotune.runtime.transport.traced_group import TracedGroup, taken
from tests.gloo_ranks import in_threads

TIMEOUT_S = 10.0
SHARES = {
    "alone": (1.0,),
    "two": (0.5, 0.5),
    "one of two": (0.0, 1.0),
    "thirds": (1 / 3, 1 / 3, 1 / 3),
    "one server": (0.0, 1.0, 0.0),
    "slow last": (1 / 3, 1 / 3, 1 / 3, 0.0),
    "uneven": (0.07, 0.0, 0.6, 0.33),
}


def gloo_group(store: Any, rank: int, size: int, timeout_s: float) -> dist.ProcessGroup:
    kind = dist.ProcessGroup.BackendType.GLOO
    group = dist.ProcessGroup(store, rank, size)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(store, rank, size, options))
    return group


def on_ranks(
    shares: Sequence[float],
    run: Callable[[ShardGroup], Any],
    *,
    chunk_bytes: int = shard_group.CHUNK_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """The result of `run` on each rank; every group is closed and its thread ended afterwards."""
    store, size = dist.HashStore(), len(shares)

    def rank_runs(rank: int) -> Any:
        group = ShardGroup(gloo_group(store, rank, size, timeout_s), shares, chunk_bytes=chunk_bytes)
        try:
            return run(group)
        finally:
            thread = group.close()
            del group
            thread.join(timeout=TIMEOUT_S)
            assert not thread.is_alive()

    return in_threads(size, rank_runs)


def values(rank: int, number: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(number, generator=generator, dtype=torch.float64).to(dtype)


def plain_sum(size: int, number: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return reduce(torch.add, [values(rank, number, dtype, seed) for rank in range(size)])


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
def test_the_sum_is_the_plain_sum_in_rank_order(shares: tuple[float, ...]) -> None:
    cases = [
        (number, dtype)
        for number in (1, 2, 3, 7, 100, 1003)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    ]

    def run(group: ShardGroup) -> bool:
        tensors = [values(group.rank(), number, dtype) for number, dtype in cases]
        for tensor in tensors:
            assert group.allreduce([tensor]).wait()
        expected = [plain_sum(group.size(), number, dtype) for number, dtype in cases]
        return all(map(torch.equal, tensors, expected))

    assert all(on_ranks(shares, run, chunk_bytes=256))


@pytest.mark.parametrize("num_tags", [shard_group._NUM_TAGS, 6, 2])
def test_many_in_flight_at_once(monkeypatch: pytest.MonkeyPatch, num_tags: int) -> None:
    """Also when tags are reused while messages with them are in flight."""
    monkeypatch.setattr(shard_group, "_NUM_TAGS", num_tags)
    sizes = [*range(1, 20), 5000, 3, 2000, 1, 1]

    def run(group: ShardGroup) -> bool:
        tensors = [values(group.rank(), number, seed=number) for number in sizes]
        works = [group.allreduce([tensor], dist.AllreduceOptions()) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        expected = [plain_sum(group.size(), number, seed=number) for number in sizes]
        return all(map(torch.equal, tensors, expected))

    assert all(on_ranks(SHARES["uneven"], run, chunk_bytes=512))


def test_ranks_that_come_late_change_nothing() -> None:
    def run(group: ShardGroup) -> Tensor:
        tensor = values(group.rank(), 600)
        time.sleep(0.05 * (group.size() - group.rank()))
        group.allreduce([tensor]).wait()
        return tensor

    for tensor in on_ranks(SHARES["slow last"], run, chunk_bytes=256):
        assert torch.equal(tensor, plain_sum(4, 600))


def test_what_is_not_contiguous_or_has_no_dimension_or_needs_gradients() -> None:
    def run(group: ShardGroup) -> list[Tensor]:
        rank = group.rank()
        transposed = values(rank, 60).view(6, 10).t()
        every_other = values(rank, 60)[::2]
        scalar = torch.tensor(float(rank + 1))
        parameter = torch.nn.Parameter(values(rank, 5))
        nothing = torch.zeros(0)
        for tensor in (transposed, every_other, scalar, parameter, nothing):
            group.allreduce([tensor]).wait()
        return [transposed.t().reshape(-1), every_other, scalar, parameter.detach()]

    total = plain_sum(3, 60)
    for transposed, every_other, scalar, parameter in on_ranks(SHARES["thirds"], run, chunk_bytes=64):
        assert torch.equal(transposed, total)
        assert torch.equal(every_other, total[::2])
        assert scalar == 6.0
        assert torch.equal(parameter, plain_sum(3, 5))


def test_a_list_of_tensors_is_one_work_whose_future_holds_it() -> None:
    def run(group: ShardGroup) -> list[Tensor]:
        future = group.allreduce([values(group.rank(), 10), values(group.rank(), 20)]).get_future()
        return list(future.wait())

    for first, second in on_ranks(SHARES["two"], run):
        assert torch.equal(first, plain_sum(2, 10))
        assert torch.equal(second, plain_sum(2, 20))


def test_everything_else_passes_through() -> None:
    def run(group: ShardGroup) -> bool:
        rank, size = group.rank(), group.size()
        received, total = torch.zeros(3), torch.ones(50)
        arriving = group.recv([received], (rank - 1) % size, 5)
        reducing = group.allreduce([total])
        group.send([torch.full((3,), float(rank))], (rank + 1) % size, 5).wait()
        arriving.wait()
        reducing.wait()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        shared = torch.full((2,), float(rank))
        group.broadcast([shared], options).wait()
        gathered = [torch.zeros(1) for _ in range(size)]
        group.allgather([gathered], [torch.tensor([float(rank)])]).wait()
        group.barrier().wait()
        return (
            bool((received == (rank - 1) % size).all())
            and bool((total == size).all())
            and bool((shared == 1).all())
            and torch.cat(gathered).tolist() == list(range(size))
        )

    assert all(on_ranks(SHARES["thirds"], run))


def test_a_traced_group_records_its_all_reduces() -> None:
    def run(group: ShardGroup) -> tuple[int, list[int]]:
        traced = TracedGroup(group)
        traced.allreduce([torch.ones(4)]).wait()
        unheard = len(taken(traced))
        traced.recording = True
        for work in [traced.allreduce([torch.ones(number)]) for number in (10, 20)]:
            work.wait()
        noted = taken(traced)
        traced.close()
        assert all(delivery.end_s >= delivery.posted_s for delivery in noted)
        return unheard, [delivery.num_bytes for delivery in noted]

    assert on_ranks(SHARES["two"], run) == [(0, [40, 80])] * 2


@pytest.mark.parametrize("shares", [SHARES["thirds"], SHARES["one server"]])
def test_when_a_peer_leaves_present_and_later_waits_fail(shares: tuple[float, ...]) -> None:
    """Rank 0 takes part in the first all-reduce only; the others leave when their wait fails, as in a trial."""

    def run(group: ShardGroup) -> list[str]:
        group.allreduce([torch.ones(100)]).wait()
        if group.rank() == 0:
            return []
        tensors = [torch.ones(100) for _ in range(3)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        return [_error(work) for work in works] + [_error(group.allreduce([tensors[0]]))]

    begun = time.monotonic()
    _, *others = on_ranks(shares, run, timeout_s=30.0)
    assert time.monotonic() - begun < 10.0
    assert all(len(errors) == 4 and all(errors) for errors in others)


def test_a_peer_that_does_not_answer_in_time_is_an_error() -> None:
    done = threading.Event()

    def run(group: ShardGroup) -> str:
        if group.rank() == 0:
            done.wait(TIMEOUT_S)
            return ""
        try:
            return _error(group.allreduce([torch.ones(100)]))
        finally:
            done.set()

    _, error = on_ranks(SHARES["two"], run, timeout_s=0.5)
    assert error


def test_what_was_posted_is_finished_after_close() -> None:
    def run(group: ShardGroup) -> Tensor:
        tensor = values(group.rank(), 500)
        work = group.allreduce([tensor])
        group.close()
        work.wait()
        return tensor

    for tensor in on_ranks(SHARES["thirds"], run, chunk_bytes=128):
        assert torch.equal(tensor, plain_sum(3, 500))


def test_no_thread_is_left() -> None:
    on_ranks(SHARES["two"], lambda group: group.allreduce([torch.ones(3)]).wait())
    assert not [thread for thread in threading.enumerate() if thread.name == "autotune-shards"]


def test_only_sums_and_only_shares_that_add_up() -> None:
    def run(group: ShardGroup) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        with pytest.raises(ValueError, match="sums only"):
            group.allreduce([torch.ones(3)], options)

    on_ranks(SHARES["alone"], run)
    group = gloo_group(dist.HashStore(), 0, 1, TIMEOUT_S)
    for shares in ((0.5,), (0.5, 0.5), (-1.0,)):
        with pytest.raises(ValueError, match="summing to 1"):
            ShardGroup(group, shares)


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
@pytest.mark.parametrize("number", [0, 1, 2, 5, 1000, 12_345])
def test_slices_cover_the_tensor_once(shares: tuple[float, ...], number: int) -> None:
    pieces = cut(number, 4, shares, 400)
    covered = sorted(index for piece in pieces for owned in piece for index in range(number)[owned])
    assert covered == list(range(number))
    lengths = [sum(len(range(number)[piece[owner]]) for piece in pieces) for owner in range(len(shares))]
    assert all(abs(length - share * number) <= 1 for length, share in zip(lengths, shares, strict=True))
    assert all(length == 0 for length, share in zip(lengths, shares, strict=True) if share == 0)
    assert all(len(range(number)[owned]) * 4 <= 400 for piece in pieces for owned in piece)


def _error(work: Any) -> str:
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""
