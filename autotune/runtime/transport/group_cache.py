"""The open process groups of one job or trial: opened when first needed, reused, and closed together.

Opening a group takes longer than a training step, so a plan that changes during training reuses the group of an earlier
plan with the same communication configuration. Where only the owner shares differ, the open group gets the new shares.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch.distributed as dist

from autotune.runtime.transport.groups import Groups
from autotune.workloads.plan import CommPlan

_Key = tuple[str, str, str, tuple[int, ...], tuple[float, ...]]
"""Use, transport, collective, servers, owner shares."""


class GroupCache:
    """A context: its end closes the groups. All ranks make the same calls in the same order, with nothing in flight.

    Not thread-safe: the thread that trains makes all calls. What holds a group must release it before the context ends.
    """

    def __init__(self, groups: Groups, *, timeout_s: float, traced: bool = False) -> None:
        """`timeout_s`: the longest wait for other ranks. `traced`: groups record their collectives."""
        self._groups, self._timeout_s, self._traced = groups, timeout_s, traced
        self._open: dict[_Key, dist.ProcessGroup] = {}
        self._stack = ExitStack()

    def get(self, comm: CommPlan, use: str = "") -> dist.ProcessGroup:
        """The group with this communication configuration. Groups of different `use` are different groups."""
        key = _key(comm, use)
        if key not in self._open:
            opened = self._groups.open(
                comm.transport,
                collective=comm.collective,
                servers=comm.servers,
                shares=comm.shares,
                timeout_s=self._timeout_s,
                traced=self._traced,
            )
            self._open[key] = self._stack.enter_context(opened)
        return self._open[key]

    def switch(self, comm: CommPlan, use: str = "") -> dist.ProcessGroup:
        """As `get`, for a plan that replaces another one: a group that differs in its owner shares only gets those of `comm`."""
        key = _key(comm, use)
        similar = next((other for other in self._open if other[:-1] == key[:-1]), None)
        if key not in self._open and similar is not None:
            self._groups.set_owners(self._open[similar], comm.shares)
            self._open[key] = self._open.pop(similar)
        return self.get(comm, use)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()  # first: peers learn that this rank has left when nothing holds its groups
        self._stack.__exit__(kind, error, trace)


def _key(comm: CommPlan, use: str) -> _Key:
    return use, comm.transport, comm.collective, comm.servers, comm.shares
