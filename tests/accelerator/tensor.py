"""The tensor of the fake device: a wrapper around a CPU tensor, on which every operation is really computed.

What an operation touches is found in its schema. Views are free; everything else is launched on the current stream of
the device of its tensors. Copies are in copies.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch

from tests.accelerator import costs, races, streams, timeline
from tests.accelerator.counts import counts
from tests.accelerator.devices import all_devices
from tests.accelerator.races import Block, Use
from tests.accelerator.streams import NAME, Stream
from tests.accelerator.timeline import Line

aten = torch.ops.aten

SYNCS = {
    aten._local_scalar_dense.default: "item",
    aten.is_nonzero.default: "bool",
    aten.equal.default: "equal",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operations whose result, or its shape, the host must know."""
CPU_INDEX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
"""Operations that take indices from the CPU."""

SHAPE_ONLY = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
}
"""Operations that take a tensor for its shape and do not read it."""

_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


def block_of(raw: torch.Tensor, device: int | None, line: Line | None = None) -> Block:
    """The record of a storage: of a device, or of pinned host memory."""
    storage = raw.untyped_storage()
    with timeline.LOCK:
        block = _blocks.get(storage._cdata)
        if block is None:
            block = Block(all_devices[device] if device is not None else None, storage.nbytes(), line)
            if line is not None:
                use = Use(line.key, line.clock.get(line.key, 0), "allocation")
                block.uses.append(((0, storage.nbytes()), use, True))
            _blocks[storage._cdata] = block
        return block


class DeviceTensor(torch.Tensor):
    """A tensor on a fake device; `raw` holds its values."""

    raw: torch.Tensor
    block: Block

    @staticmethod
    def __new__(cls, raw: torch.Tensor, index: int, line: Line | None = None) -> Self:
        out: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, index),
        )
        out.raw = raw
        out.block = block_of(raw, index, line or streams.current_line(index))
        return out

    def __init__(self, *_: object) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from tests.accelerator import copies

        special = copies.SPECIAL.get(func)
        return (special or compute)(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, device='{self.device}')"

    def numpy(self, *_: object, **__: object) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __array__(self, *_: object, **__: object) -> Any:
        return self.numpy()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def record_stream(self, stream: Stream) -> None:
        """Memory that is freed is not given away before what this stream has queued is done."""
        self.block.recorded.add((stream.device_index, stream.stream_id))

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, DeviceTensor):
            raise TypeError(f"incompatible tensor type: {other.device} given for the data of a tensor on {self.device}")
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.raw, self.block = other.raw, other.block

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only tensors that the user made support deepcopy")
        with torch.no_grad():
            copied: Any = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        copied.__dict__.update({k: v for k, v in self.__dict__.items() if k not in {"raw", "block"}})
        if self.grad is not None:
            copied.grad = self.grad.detach().clone()
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Written as the CPU tensor that `torch.load(map_location="cpu")` would give."""
        copied = self.detach().cpu()
        plain = torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied
        return plain.__reduce_ex__(protocol)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """Makes `Module.to` swap a parameter's contents, so that it stays the same object as on CUDA."""
        return ["raw"], self.device.index

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], index: Any, *_: Any) -> DeviceTensor:
        return DeviceTensor(inner["raw"], index)


@dataclass(frozen=True, slots=True)
class Signature:
    """What the dispatcher needs to know of an operation."""

    name: str
    written: tuple[bool, ...]
    """Which positions it writes."""
    written_names: frozenset[str]
    is_view: bool
    is_refused: bool
    reads: bool
    """Whether it reads its tensors, and does not take their shape only."""


@cache
def signature_of(func: Any) -> Signature:
    arguments = func._schema.arguments
    written = [bool(a.alias_info and a.alias_info.is_write) for a in arguments]
    return Signature(
        name=str(func),
        written=tuple(written),
        written_names=frozenset(a.name for a, write in zip(arguments, written, strict=True) if write),
        is_view=any(a.alias_info and not a.alias_info.is_write for a in arguments),
        is_refused=torch.Tag.inplace_view in func.tags or func.namespace == "c10d",
        reads=func._schema.name.removeprefix("aten::") not in SHAPE_ONLY,
    )


def unwrapped(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.raw
    if isinstance(value, (list, tuple)):
        return type(value)(unwrapped(each) for each in value)
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def tensors_in(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def device_index(func: Any, tensors: list[torch.Tensor]) -> int:
    """The one device of an operation's tensors; scalars may be on the CPU."""
    devices = {tensor.device for tensor in tensors if isinstance(tensor, DeviceTensor)}
    for tensor in tensors:
        if not isinstance(tensor, DeviceTensor) and tensor.dim() > 0 and func not in CPU_INDEX:
            devices.add(tensor.device)
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {names} in {func}")
    return next(iter(devices)).index


def wrapped(value: Any, given: dict[int, DeviceTensor], index: int) -> Any:
    if isinstance(value, torch.Tensor):
        known = given.get(id(value))
        return DeviceTensor(value, index) if known is None else known
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped(each, given, index) for each in value)
    return value


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Launch an operation: compute it, occupy the stream, check the order of what it touches."""
    signature = signature_of(func)
    if signature.is_refused:
        raise NotImplementedError(f"{func} is not available on the fake accelerator")
    tensors = tensors_in([*args, *kwargs.values()])
    index = device_index(func, tensors)
    if _host_needs(func, args):
        host_sync(SYNCS.get(func, "nonzero"), index)
    given = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, DeviceTensor)}
    raw_args, raw_kwargs = unwrapped(args), {name: unwrapped(value) for name, value in kwargs.items()}
    if signature.is_view:
        return wrapped(func(*raw_args, **raw_kwargs), given, index)
    line = streams.current_line(index)
    if line.pending:
        line.resolve()
    out = func(*raw_args, **raw_kwargs)
    touched = [value for value, write in zip(args, signature.written, strict=False) if write]
    touched += [kwargs[name] for name in signature.written_names if name in kwargs]
    duration_s = costs.duration_s(
        all_devices[index],
        costs.flops(func, raw_args, raw_kwargs, out),
        _bytes_of([*(tensors if signature.reads else []), *tensors_in([out])]),
    )
    launch(signature.name, line, duration_s, tensors if signature.reads else [], tensors_in(touched))
    target = kwargs.get("device")
    if target is not None and torch.device(target).type == "cpu":
        return out
    return wrapped(out, given, index if target is None else streams.index_of(target))


def _bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def launch(name: str, line: Line, duration_s: float, tensors: list[torch.Tensor], touched: list[torch.Tensor]) -> None:
    """Queue an operation that has been computed; of its tensors, those touched are written."""
    if streams.index_of() != line.key[0]:
        counts.launch_elsewhere()
    line.launch(duration_s)
    counts.launch(name)
    changed = {id(tensor) for tensor in touched}
    uses = [
        (each.block, races.span_of(each.raw), id(each) in changed) for each in tensors if isinstance(each, DeviceTensor)
    ]
    races.touch_all(line, name, uses)


def _host_needs(func: Any, args: Any) -> bool:
    if func in SYNCS:
        return True
    if func not in CPU_INDEX:
        return False
    return any(
        isinstance(each, DeviceTensor) and each.dtype in {torch.bool, torch.uint8} for each in tensors_in(args[1])
    )


def host_sync(kind: str, index: int) -> None:
    """The host waits for the current stream."""
    counts.host_sync(kind)
    streams.current_line(index).point().synchronize()


def factory(op: Callable[..., torch.Tensor]) -> Callable[..., DeviceTensor]:
    """An operation that makes a tensor from none."""

    def make(*args: Any, **kwargs: Any) -> DeviceTensor:
        device = kwargs.get("device")
        index = streams.valid_index(device)
        kwargs.update(device=torch.device("cpu"))
        kwargs.pop("pin_memory", None)
        line = streams.current_line(index)
        raw = op(*args, **kwargs)
        out = DeviceTensor(raw, index, line)
        if "empty" not in str(op):
            launch(str(op), line, costs.duration_s(all_devices[index], 0, _bytes_of([raw])), [out], [out])
        return out

    return make
