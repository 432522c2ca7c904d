"""Copies: on a device, between devices, and between host and device.

A copy from host memory that is not pinned, or that is not asked to be non-blocking, makes the host wait, and so does
every blocking copy to the host. A non-blocking copy to pinned memory arrives there when the host synchronises with it;
until then the memory holds NaN (the smallest number for integers). Pinned memory that is overwritten before a
non-blocking copy from it was synchronised with is an error at that synchronisation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.accelerator import costs, races, streams, timeline
from tests.accelerator.counts import counts
from tests.accelerator.devices import all_devices
from tests.accelerator.tensor import DeviceTensor, aten, block_of, compute, host_sync
from tests.accelerator.timeline import Delivery, Line


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no result is."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype != torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _use_link(line: Line, name: str, work: str, uses: list[Any], num_bytes: int) -> None:
    if streams.index_of() != line.key[0]:
        counts.launch_elsewhere()
    if line.pending:
        line.resolve()
    line.launch(costs.link_s(all_devices[line.key[0]], num_bytes), work)
    counts.launch(name)
    races.touch_all(line, name, uses)


def to_device(destination: DeviceTensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    index = destination.device.index
    line = streams.current_line(index)
    uses, pinned = [(destination.block, races.span_of(destination.raw), True)], source.is_pinned()
    if pinned:
        block = block_of(source, None)
        uses.append((block, races.span_of(source), False))
        _deliver(block, line)
    _use_link(line, "copy to device", timeline.TO_DEVICE, uses, source.numel() * source.itemsize)
    destination.raw.copy_(source)
    if non_blocking and pinned:
        sent = source.clone()
        timeline.deliveries.append(Delivery(line.clock, partial(_unchanged, source, sent), block))
    elif not non_blocking:
        host_sync("copy to device", index)


def _deliver(block: races.Block, line: Line) -> None:
    """A device that reads pinned memory sees what it has waited for."""
    for delivery in list(block.deliveries):
        if timeline.covers(line.clock, delivery.clock):
            delivery.settle()
            block.deliveries.remove(delivery)


def _unchanged(source: torch.Tensor, sent: torch.Tensor) -> None:
    if races.enabled() and not torch.equal(source.nan_to_num(), sent.nan_to_num()):
        raise races.RaceError(
            "pinned memory was overwritten before the non-blocking copy from it was done: record an event after the "
            "copy and synchronise with it before the memory is written again"
        )


def to_host(destination: torch.Tensor, source: DeviceTensor, *, non_blocking: bool) -> None:
    index = source.device.index
    line = streams.current_line(index)
    uses, late = [(source.block, races.span_of(source.raw), False)], non_blocking and destination.is_pinned()
    if late:
        block = block_of(destination, None)
        uses.append((block, races.span_of(destination), True))
    _use_link(line, "copy to host", timeline.TO_HOST, uses, source.numel() * source.itemsize)
    if not late:
        host_sync("copy to host", index)
        destination.copy_(source.raw)
        return
    taken = source.raw.to(destination.dtype, copy=True)
    poison(destination)
    delivery = Delivery(line.clock, partial(destination.copy_, taken), block)
    block.deliveries.append(delivery)
    timeline.deliveries.append(delivery)


def between_devices(destination: DeviceTensor, source: DeviceTensor) -> None:
    """On the source's stream, which waits for the destination's; and the other way round afterwards."""
    there, here = streams.current_line(destination.device.index), streams.current_line(source.device.index)
    here.wait(there.point())
    _use_link(
        here,
        "copy",
        timeline.TO_HOST,
        [(one.block, races.span_of(one.raw), one is destination) for one in (source, destination)],
        source.numel() * source.itemsize,
    )
    destination.raw.copy_(source.raw)
    there.wait(here.point())


def copy(func: Any, args: Any, kwargs: Any) -> Any:
    """aten.copy_(destination, source)."""
    destination, source = args[:2]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if not isinstance(source, DeviceTensor):
        to_device(destination, source, non_blocking=non_blocking)
    elif not isinstance(destination, DeviceTensor):
        to_host(destination, source, non_blocking=non_blocking)
    elif source.device != destination.device:
        between_devices(destination, source)
    else:
        return compute(func, args, kwargs)
    return destination


def to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """aten._to_copy(source, dtype=, device=, non_blocking=, ...)."""
    (source,) = args
    target = torch.device(kwargs.get("device") or source.device)
    options = {name: kwargs[name] for name in ("dtype", "memory_format") if kwargs.get(name) is not None}
    if target == source.device or (target.type == source.device.type and target.index is None):
        return compute(func, args, {**kwargs, "device": None, "non_blocking": False})
    non_blocking = bool(kwargs.get("non_blocking"))
    made = torch.empty_like(source.raw, **options)
    if target.type == "cpu":
        out: Any = torch.empty_like(made, pin_memory=True) if non_blocking else made
        to_host(out, source, non_blocking=non_blocking)
        return out
    if target.type != source.device.type:
        raise NotImplementedError(f"copy from {source.device} to {target}")
    out = DeviceTensor(made, streams.valid_index(target))
    between_devices(out, source)
    return out


def pin(func: Any, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(f"cannot pin '{args[0].device}' only dense CPU tensors can be pinned")


def is_pinned(func: Any, args: Any, kwargs: Any) -> bool:
    return False


def copy_from(source: torch.Tensor, destination: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What torch calls where neither tensor is asked: aten._copy_from."""
    copy(aten.copy_.default, (destination, source, non_blocking), {})
    return destination


SPECIAL = {
    aten.copy_.default: copy,
    aten._to_copy.default: to_copy,
    aten._pin_memory.default: pin,
    aten.is_pinned.default: is_pinned,
}
__all__ = ["SPECIAL", "copy_from", "poison"]
