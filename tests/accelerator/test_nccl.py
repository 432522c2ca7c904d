"""The process group with NCCL's demands and promises."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.accelerator import devices, races
from tests.accelerator.counts import counts
from tests.accelerator.models import MODELS
from tests.accelerator.nccl import FakeNccl
from tests.accelerator.threads import on_device_ranks
from tests.accelerator.transfer import DeadlockError, WatchdogError
from tests.gloo_ranks import on_ranks

fgpu = torch.get_device_module("fgpu")


def ranks(run: Any, size: int = 2, **options: Any) -> list[Any]:
    """What it returns on each rank; the first exception is raised."""
    found = on_device_ranks(size, run, **options)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def tensor_of(group: Any) -> torch.Tensor:
    return torch.full((4,), group.rank() + 1.0, device="fgpu")


def data_parallel(group: Any, device: str) -> list[torch.Tensor]:
    """A training loop without wrappers: every rank its own samples, gradients summed by all-reduces."""
    draw, model = torch.Generator().manual_seed(group.rank()), MODELS["mlp"][0]()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=0.01)
    for _ in range(4):
        inputs, labels = torch.randn(10, 8, generator=draw), torch.randint(0, 4, (10,), generator=draw)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
        for work in [group.allreduce([parameter.grad]) for parameter in model.parameters()]:
            work.wait()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_data_parallel_training_equals_the_cpu() -> None:
    fake, real = ranks(partial(data_parallel, device="fgpu")), on_ranks(2, partial(data_parallel, device="cpu"))
    for one, other in zip(fake, real, strict=True):
        assert all(map(torch.equal, one, other))


def collectives(group: Any) -> list[Any]:
    reduced, average, given, spread = (tensor_of(group) for _ in range(4))
    gathered = [torch.empty(4, device="fgpu") for _ in range(group.size())]
    base, part = torch.empty(8, device="fgpu"), torch.empty(2, device="fgpu")
    mean = dist.AllreduceOptions()
    mean.reduceOp = dist.ReduceOp.AVG
    first = dist.BroadcastOptions()
    first.rootRank, first.rootTensor = 1, 0
    works = [
        group.allreduce([reduced]),
        group.allreduce([average], mean),
        group.broadcast([spread], first),
        group.allgather([gathered], [given]),
        group._allgather_base(base, given),
        group._reduce_scatter_base(part, given),
    ]
    for work in works:
        work.wait()
    return [each.tolist() for each in (reduced, average, spread, torch.cat(gathered), base, part)]


def test_collectives() -> None:
    both = [1.0] * 4 + [2.0] * 4
    assert ranks(collectives) == [[[3.0] * 4, [1.5] * 4, [2.0] * 4, both, both, [3.0] * 2]] * 2


def test_torch_distributed_takes_the_group() -> None:
    def run(group: Any) -> Any:
        tensor = tensor_of(group)
        dist.all_reduce(tensor, group=group)
        return tensor.tolist()

    assert ranks(run) == [[3.0] * 4] * 2


@pytest.mark.parametrize("detected", [True, False])
def test_reading_before_waiting_is_an_error_or_reads_nan(detected: bool) -> None:
    races.enable(detected)

    def run(group: Any) -> Any:
        tensor = tensor_of(group)
        work = group.allreduce([tensor])
        read = tensor.clone()
        work.wait()
        return read.tolist(), tensor.tolist()

    found = on_device_ranks(2, run)
    if detected:
        assert all(isinstance(each, races.RaceError) and "allreduce" in str(each) for each in found)
    else:
        assert all(str(read) == str([float("nan")] * 4) and reduced == [3.0] * 4 for read, reduced in found)


def test_waiting_on_one_stream_does_not_order_another() -> None:
    def run(group: Any) -> Any:
        tensor, side = tensor_of(group), fgpu.Stream()
        with fgpu.stream(side):
            side.wait_stream(fgpu.default_stream())
            group.allreduce([tensor]).wait()
        return tensor.clone()

    assert all(isinstance(each, races.RaceError) for each in on_device_ranks(2, run))


def test_wait_does_not_make_the_host_wait_and_futures_are_done_when_queued() -> None:
    late = threading.Event()

    def run(group: Any) -> Any:
        tensor = tensor_of(group)
        if group.rank():
            assert late.wait(10)
        work = group.allreduce([tensor])
        future = work.get_future()
        completed = work.is_completed()
        work.wait()
        late.set()
        doubled = future.then(lambda done: done.value()[0] * 2)
        return future.done(), completed, tensor.tolist(), doubled.wait().tolist()

    counts.reset()
    first, second = ranks(run)
    assert first == (True, False, [3.0] * 4, [6.0] * 4)
    assert second[2:] == first[2:]
    assert {kind for kind, _ in counts.host_syncs()} == {"copy to host"}


def test_a_collective_follows_what_is_queued_and_chains_with_the_one_before() -> None:
    def run(group: Any) -> Any:
        devices.configure(group.rank(), launch_s=0.03)
        tensor = tensor_of(group)
        start = time.monotonic()
        group.allreduce([tensor])
        group.allreduce([tensor]).wait()
        fgpu.current_stream().record_event().synchronize()
        return time.monotonic() - start, tensor.cpu().tolist()

    for whole_s, values in ranks(run):
        assert whole_s > 0.02
        assert values == [6.0] * 4


def test_a_rank_waits_for_what_a_slower_device_has_to_compute() -> None:
    together = threading.Barrier(2)

    def run(group: Any) -> Any:
        tensor, start, end = tensor_of(group), fgpu.Event(True), fgpu.Event(True)
        devices.configure(0, launch_s=0.5)
        together.wait(10)
        start.record()
        if group.rank() == 0:
            tensor.add_(1)
        group.allreduce([tensor]).wait()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    assert all(elapsed_ms > 250 for elapsed_ms in ranks(run))


def test_a_collective_follows_one_of_another_group_that_its_stream_waits_for() -> None:
    store = dist.HashStore()

    def run(group: Any) -> Any:
        other = FakeNccl(store, group.rank(), 2)
        group.bytes_per_s = 16 / 0.2
        first, second = tensor_of(group), tensor_of(group)
        start, end = fgpu.Event(True), fgpu.Event(True)
        start.record()
        group.allreduce([first]).wait()
        work = other.allreduce([second])
        with fgpu.stream(fgpu.Stream()):
            work.wait()
            end.record()
        end.synchronize()
        other.shutdown()
        return start.elapsed_time(end)

    assert all(elapsed_ms >= 200 for elapsed_ms in ranks(run))


def test_what_is_not_on_the_device_or_not_contiguous_is_refused() -> None:
    def run(group: Any) -> Any:
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            group.allreduce([torch.ones(2)])
        with pytest.raises(ValueError, match="contiguous"):
            group.allreduce([torch.ones(2, 3, device="fgpu").t()])

    ranks(run, 1)


def exchange(group: Any, *, reversed_on: int | None) -> Any:
    peer, given, got = 1 - group.rank(), tensor_of(group), torch.empty(4, device="fgpu")
    calls = [lambda: group.send([given], peer), lambda: group.recv([got], peer)]
    works = [call() for call in (reversed(calls) if group.rank() == reversed_on else calls)]
    for work in works:
        work.wait()
    return got.tolist()


def test_one_queue_per_pair() -> None:
    assert ranks(partial(exchange, reversed_on=1)) == [[2.0] * 4, [1.0] * 4]
    start = time.monotonic()
    found = on_device_ranks(2, partial(exchange, reversed_on=None))
    assert all(isinstance(each, DeadlockError) and "both send first" in str(each) for each in found)
    assert time.monotonic() - start < 10


def test_messages_of_different_pairs_do_not_wait_for_each_other() -> None:
    def run(group: Any) -> Any:
        got, given, rank = torch.empty(4, device="fgpu"), tensor_of(group), group.rank()
        group.recv([got], (rank - 1) % 3)
        group.send([given], (rank + 1) % 3).wait()
        fgpu.synchronize()
        return got.tolist()

    assert ranks(run, 3) == [[3.0] * 4, [1.0] * 4, [2.0] * 4]


def test_an_operation_takes_at_least_what_the_link_needs() -> None:
    def run(group: Any) -> Any:
        group.bytes_per_s = 16 / 0.2
        tensor, start, end = tensor_of(group), fgpu.Event(True), fgpu.Event(True)
        start.record()
        group.allreduce([tensor]).wait()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    assert all(elapsed_ms >= 200 for elapsed_ms in ranks(run))


def test_memory_of_a_completed_operation_is_given_back() -> None:
    def run(group: Any) -> Any:
        before = fgpu.memory_allocated()
        for _ in range(3):
            tensor = tensor_of(group)
            group.allreduce([tensor]).wait()
            tensor.add_(1)
        del tensor
        return fgpu.memory_allocated() - before

    assert ranks(run) == [0, 0]


@pytest.mark.parametrize("aborted", [True, False])
def test_a_peer_that_does_not_take_part_blocks_until_abort_or_the_watchdog(aborted: bool) -> None:
    def run(group: Any) -> Any:
        if group.rank():
            return None
        tensor = tensor_of(group)
        group.allreduce([tensor]).wait()
        if aborted:
            threading.Timer(0.3, group.abort).start()
        start = time.monotonic()
        fgpu.synchronize()
        with pytest.raises(dist.DistBackendError, match="was aborted on rank 0"):
            group.allreduce([tensor])
        return time.monotonic() - start, group.aborts, group.aborted_operations, tensor.cpu().isnan().all().item()

    waited = on_device_ranks(2, run, timeout_s=20 if aborted else 1)[0]
    if aborted:
        assert waited[0] > 0.2
        assert waited[1:] == (1, 1, True)
    else:
        assert isinstance(waited, WatchdogError)


def test_an_operation_that_is_aborted_before_the_device_comes_to_it_has_no_result_and_no_error() -> None:
    """Its thread, which waits for the device, must not exchange what the abort has released."""

    def run(group: Any) -> list[float]:
        tensor, gathered = tensor_of(group), torch.full((8,), 7.0, device="fgpu")
        devices.configure(group.rank(), launch_s=0.5)
        tensor.add_(0)
        work = group._allgather_base(gathered, tensor)
        threading.Timer(0.1, group.abort).start()
        time.sleep(0.3)  # aborted, and the device has not come to it
        work.wait()
        fgpu.synchronize()
        time.sleep(0.5)
        work.wait()
        return gathered.cpu().nan_to_num(nan=-1.0).tolist()

    assert ranks(run) == [[-1.0] * 8] * 2


def test_the_host_waits_for_a_barrier() -> None:
    called = set()

    def run(group: Any) -> Any:
        time.sleep(0.1 * group.rank())
        called.add(group.rank())
        group.barrier().wait()
        return called.copy()

    counts.reset()
    assert ranks(run) == [{0, 1}] * 2
    assert {kind for kind, _ in counts.host_syncs()} == {"barrier"}


def test_ddp_trains_on_the_group() -> None:
    def run(group: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to("fgpu"), process_group=group)
        model(torch.full((3, 4), float(group.rank()), device="fgpu")).sum().backward()
        return model.module.weight.grad.tolist()

    assert ranks(run) == [[[1.5] * 4] * 2] * 2


def test_the_transport_is_registered() -> None:
    from autotune.workloads.plan.choices import TRANSPORTS, load
    from tests.accelerator import nccl_transport

    try:
        assert TRANSPORTS["fake-nccl"].device == "fgpu"
        assert load(TRANSPORTS["fake-nccl"].opened_by) is nccl_transport.open_fake_nccl
        nccl_transport.register()
    finally:
        TRANSPORTS.remove("fake-nccl")
