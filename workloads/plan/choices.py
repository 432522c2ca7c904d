"""What a plan may choose from: registries of codecs, transports and collectives, and the closed lists.

A codec, transport or collective is described here by its properties and named by where its implementation is: nothing of torch
is loaded until a job runs. A new one is a module with the implementation and one `register` call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

from autotune.workloads.errors import unknown_name


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class Registry(Mapping[str, T], Generic[T]):
    """Choices by name, in the order in which they were registered."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._choices: dict[str, T] = {}

    def register(self, choice: T) -> T:
        """Add a choice; its name must be new."""
        if choice.name in self._choices:
            raise ValueError(f"{self._what} {choice.name!r} is registered already: choose another name")
        self._choices[choice.name] = choice
        return choice

    def remove(self, name: str) -> None:
        """Take a choice out again: for tests."""
        del self._choices[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._choices:
            raise unknown_name(self._what, name, self._choices)
        return self._choices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._choices

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def names(self, having: Callable[[T], bool] = lambda _: True) -> tuple[str, ...]:
        """The names of all choices with a property."""
        return tuple(name for name, choice in self._choices.items() if having(choice))

    def index(self, name: str) -> int:
        """The place of a choice: what arrays hold instead of its name."""
        return list(self._choices).index(name)


def load(where: str) -> Any:
    """The object that "module:name" stands for."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


class Word(StrEnum):
    """A choice that a plan stores as a word and messages quote as one, with one line for documentation."""

    text: str

    def __new__(cls, value: str, text: str) -> Self:
        word = str.__new__(cls, value)
        word._value_, word.text = value, text
        return word

    def __repr__(self) -> str:
        return repr(self.value)


class ReducerKind(Word):
    """What sums gradients over ranks."""

    DDP = "ddp", "torch's DistributedDataParallel: the baseline"
    BUCKETED = "bucketed", "our own: buckets in the order in which they are complete"
    SCHEDULED = "scheduled", "fusion buffers, cut into partitions, sent by priority under a credit"
    AVERAGED = "averaged", "no gradient is sent: models are averaged every few steps (local SGD)"


class Priority(Word):
    """Which of the partitions that are ready is sent first."""

    LAYER = "layer", "the partition nearest to the model's input"
    FIFO = "fifo", "the partition that was complete first"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """What carries tensors between ranks."""

    name: str
    text: str
    """One line for documentation."""
    opened_by: str
    """"module:function", called with an `OpenGroup` of `autotune.runtime.transport.open_group`; answers a ProcessGroup."""
    device: str = "cpu"
    """The type of device whose tensors it takes; those of the host take an accelerator's by way of the host's memory."""
    carries_messages: bool = False
    """Whether it sends from one rank to another: sufficient factors and some codecs need that."""
    carries_shards: bool = False
    """Whether collectives that are made of messages run on it."""
    heeds_order: bool = False
    """Whether its all-reduce is a ring in the order in which ranks are numbered when it is opened; else it finds its own."""
    num_slots: int = 1
    """All-reduces that it works on at once, for the simulator."""

    @property
    def is_of_host(self) -> bool:
        """Whether it takes tensors of the host."""
        return self.device == "cpu"


TRANSPORTS: Registry[Transport] = Registry("transport")
TRANSPORTS.register(
    Transport(
        name="gloo",
        text="torch's gloo over TCP",
        opened_by="autotune.runtime.transport.open_group:open_gloo",
        carries_messages=True,
        carries_shards=True,
        heeds_order=True,
        num_slots=2,
    )
)
TRANSPORTS.register(
    Transport(
        name="mpi",
        text="a ring of MPI messages",
        opened_by="autotune.runtime.transport.open_group:open_mpi",
        heeds_order=True,
    )
)
TRANSPORTS.register(
    Transport(
        name="nccl",
        text="torch's NCCL, for CUDA tensors",
        opened_by="autotune.runtime.transport.open_group:open_nccl",
        device="cuda",
        carries_messages=True,
    )
)


def cpu_transports() -> tuple[str, ...]:
    """Those that a job on CPUs chooses from."""
    return TRANSPORTS.names(lambda transport: transport.is_of_host)


def transports_for(accelerators: Sequence[str], on_host: Sequence[str]) -> tuple[str, ...]:
    """Those that a job chooses from. `accelerators`: the type of each rank's, empty for a CPU.

    Where all ranks have accelerators of one type, its own transports come first. Those of the host, `on_host`, work
    everywhere: an accelerator's tensors go by way of the host's memory.
    """
    kinds = set(accelerators)
    kind = kinds.pop() if len(kinds) == 1 else ""
    return (*TRANSPORTS.names(lambda transport: bool(kind) and transport.device == kind), *on_host)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """How a sum over ranks is carried out."""

    name: str
    text: str
    is_runnable: bool = True
    """Whether a job runs it, or `autotune simulate` predicts it only."""
    wrapped_by: str = ""
    """"module:function", called with a `WrapGroup` of `autotune.runtime.transport.collective_groups`; answers a ProcessGroup.
    Empty: it is the transport's own."""
    needs_messages: bool = False
    """Whether it is made of messages from rank to rank."""
    is_searched: bool = False
    """Whether a search proposes it unasked."""
    sums_in_hosts: bool = False
    """Whether it sums within each host first: a search proposes it where some of several hosts have several ranks."""


COLLECTIVES: Registry[Collective] = Registry("collective")
COLLECTIVES.register(Collective(name="ring", text="the transport's own all-reduce, a ring", is_searched=True))
COLLECTIVES.register(Collective(name="tree", text="a binary tree (predicted only)", is_runnable=False))
_OURS = "autotune.runtime.transport.collective_groups"
COLLECTIVES.register(
    Collective(
        name="shards",
        text="owner shards: reduce-scatter and all-gather, each rank owning in proportion to its bandwidth",
        wrapped_by=f"{_OURS}:owner_shards",
        needs_messages=True,
        is_searched=True,
    )
)
COLLECTIVES.register(
    Collective(
        name="server",
        text="parameter servers on named ranks, an equal share each",
        wrapped_by=f"{_OURS}:servers",
        needs_messages=True,
    )
)
COLLECTIVES.register(
    Collective(
        name="hierarchical",
        text="reduce-scatter within each host, a ring across hosts for each shard, all-gather within each host",
        wrapped_by=f"{_OURS}:hierarchical",
        needs_messages=True,
        is_searched=True,
        sums_in_hosts=True,
    )
)
COLLECTIVES.register(
    Collective(
        name="hierarchical-shards",
        text="likewise, with owner shards of hosts instead of rings",
        wrapped_by=f"{_OURS}:hierarchical_shards",
        needs_messages=True,
        is_searched=True,
        sums_in_hosts=True,
    )
)
HIERARCHICAL = ("hierarchical", "hierarchical-shards")
"""Those that sum within hosts first."""
