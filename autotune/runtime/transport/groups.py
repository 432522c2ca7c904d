"""Process groups bootstrapped from the MPI ranks: opened for each trial, so that a failed trial leaves nothing behind.

The transport interface is torch's `ProcessGroup`: gloo and NCCL are torch's, MPI is ours, and emulated links wrap any of
them. Owner shards, parameter servers and hierarchical sums are messages over gloo, and wrap the real or the paced group. A rank that releases
its group closes its connections, which is how gloo peers learn of a failure.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.network import Network
from autotune.runtime.device import CPU, DeviceHandle
from autotune.runtime.transport.accelerator_group import AcceleratorGroup
from autotune.runtime.transport.collective_groups import WrapGroup
from autotune.runtime.transport.hierarchical_group import HierarchicalGroup
from autotune.runtime.transport.link_check import host_representatives
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.mpi_group import MpiGroup
from autotune.runtime.transport.network_store import NetworkStore
from autotune.runtime.transport.open_group import OpenGroup
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.runtime.transport.reordered_group import ReorderedGroup
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.simulate.collectives import owned_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import COLLECTIVES, TRANSPORTS
from autotune.workloads.plan.choices import load
from autotune.workloads.topology import flat_ring

_JOIN_S = 10.0


class Groups:
    """Opens the process groups of a job. Made once per job, by all ranks together.

    Not thread-safe: the thread that trains makes all calls, the same calls in the same order on all ranks.
    """

    def __init__(self, control: Control, cluster: Cluster, device: DeviceHandle = CPU) -> None:
        """`device`: of this rank's tensors; ranks may differ."""
        self._control = control
        self._cluster = cluster
        self._device = device
        self._epoch = 0
        self._threads: list[threading.Thread] = []
        self._parts: dict[tuple[int, ...], Groups] = {}
        hosts = control.share(socket.gethostname())
        self._one_machine = len(set(hosts)) == 1
        self._store = NetworkStore(control.network())
        self._clocks = self._map_clocks() if cluster.paces_links else None

    @contextmanager
    def open(  # noqa: PLR0913 - the communication configuration of a plan
        self,
        transport: str,
        *,
        collective: str = "ring",
        servers: Sequence[int] = (),
        shares: Sequence[float] = (),
        timeout_s: float,
        traced: bool = False,
    ) -> Iterator[dist.ProcessGroup]:
        """A process group, open during the context. Everything that holds it must release it before the context ends.

        `shares`: the owner shares; empty: derived from the links in the cluster file.
        """
        self._check(transport, collective, servers)
        self._epoch += 1
        layers = self._real_groups(transport, timeout_s)
        is_host_only = TRANSPORTS[transport].is_of_host
        failed = True
        try:
            if isinstance(layers[0], AcceleratorGroup):
                layers[0].watch(self._control.network())
            self._wrap(layers, collective, servers, shares, traced=traced and is_host_only)
            if is_host_only and self._device.is_accelerator:
                layers.append(StagedGroup(layers[-1], self._device))
            yield layers[-1]
            failed = False
        finally:
            while layers:
                self._close(layers.pop(), failed=failed)
            if not failed:
                self.join()

    @property
    def network(self) -> Network:
        """The control network of the ranks of these groups."""
        return self._control.network()

    def part(self, ranks: tuple[int, ...]) -> Groups | None:
        """Groups of some ranks, with their links, made once. Called by these ranks together; None on another one."""
        if self._control.rank not in ranks:
            return None
        if ranks not in self._parts:
            self._parts[ranks] = Groups(self._control.part(ranks), self._cluster.part(ranks), self._device)
        return self._parts[ranks]

    @property
    def host_representatives(self) -> tuple[int, ...]:
        """A rank of each host."""
        return host_representatives(self._cluster.host_of_rank)

    def set_owners(self, group: dist.ProcessGroup, shares: Sequence[float]) -> None:
        """Set the owner shares of an open group; called by all ranks, with nothing in flight."""
        inner: Any = group
        while not isinstance(inner, ShardGroup):
            inner = inner._inner
        inner.set_owners(shares or owned_shares(self._cluster))

    def set_links(self, cluster: Cluster) -> None:
        """Set the speeds of paced links to those of `cluster`."""
        if self._clocks is not None:
            self._clocks.set_links(cluster)
        for ranks, part in self._parts.items():
            part.set_links(cluster.part(ranks))

    def leave_parts(self) -> None:
        """The job ends: close the control networks of parts of it."""
        for part in self._parts.values():
            part.join()
            part.network.leave(_JOIN_S)

    def join(self) -> None:
        """Wait for the threads of closed groups: one that releases torch objects while Python exits would crash the process."""
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _check(self, transport: str, collective: str, servers: Sequence[int]) -> None:
        """Refuse what these ranks cannot carry out."""
        if not COLLECTIVES[collective].is_runnable:
            raise SpecError(
                f"collective {collective!r} is predicted by `autotune simulate` but no job runs it: "
                f"use {', '.join(COLLECTIVES.names(lambda one: one.is_runnable))}"
            )
        if COLLECTIVES[collective].needs_messages and not TRANSPORTS[transport].carries_shards:
            raise SpecError(
                f"collective {collective!r} is made of messages from rank to rank, which transport {transport!r} does not "
                "carry here: use transport gloo, or collective ring"
            )
        size = self._control.size
        if collective == "server" and (
            not servers or not all(0 <= rank < size for rank in servers) or len(set(servers)) < len(servers)
        ):
            raise SpecError(f"servers are {list(servers)}: name one or more of the ranks 0 to {size - 1}, each once")

    def _wrap(
        self,
        layers: list[dist.ProcessGroup],
        collective: str,
        servers: Sequence[int],
        shares: Sequence[float],
        *,
        traced: bool,
    ) -> None:
        """Wrap the real group, from the inside out."""
        if self._clocks is not None:
            layers.append(PacedGroup(layers[-1], self._cluster, self._clocks, epoch=self._epoch))
        wrap = COLLECTIVES[collective].wrapped_by
        if wrap:
            request = WrapGroup(inner=layers[-1], cluster=self._cluster, servers=servers, shares=shares)
            layers.append(load(wrap)(request))
        # Emulated links always record their collectives, but of those that we make of messages they carry only these.
        paced = self._clocks is not None
        if (traced and not paced) or (paced and wrap):
            recorder = TracedGroup(layers[-1])
            recorder.recording = paced
            layers.append(recorder)

    def _close(self, layer: dist.ProcessGroup, *, failed: bool) -> None:
        if isinstance(layer, MpiGroup):
            self._threads.append(layer.close(failed=failed))
        elif isinstance(layer, AcceleratorGroup):
            self._threads += layer.close(failed=failed)
        elif isinstance(layer, PacedGroup | ShardGroup | HierarchicalGroup):
            self._threads.append(layer.close())
        elif isinstance(layer, StagedGroup):
            self._threads += layer.close()
        elif isinstance(layer, TracedGroup | ReorderedGroup):
            layer.close()

    def _real_groups(self, transport: str, timeout_s: float) -> list[dist.ProcessGroup]:
        """The transport's group, in the order of the ring if that is not the order of the ranks."""
        ring = flat_ring(self._cluster.topology)
        order = ring if TRANSPORTS[transport].heeds_order and ring != tuple(sorted(ring)) else ()
        request = OpenGroup(
            control=self._control,
            store=PrefixStore(f"group{self._epoch}", self._store),
            timeout_s=timeout_s,
            gloo_device=self._gloo_device(),
            device=self._device,
            order=order,
        )
        group: dist.ProcessGroup = load(TRANSPORTS[transport].opened_by)(request)
        return [group, ReorderedGroup(group, order)] if order else [group]

    def _gloo_device(self) -> Any:
        if self._one_machine:
            return dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            return dist.ProcessGroupGloo.create_device(interface=interface)
        return dist.ProcessGroupGloo.create_device(hostname=socket.gethostname())

    def _map_clocks(self) -> LinkClocks:
        if not self._one_machine:
            raise SpecError(
                f"cluster {self._cluster.name!r} is emulated by pacing, which needs all ranks on one machine: "
                "start them on one, or use --cluster this-machine to tune the real devices"
            )
        path = self._control.broadcast(LinkClocks.create(self._cluster) if self._control.is_leader else None)
        clocks = LinkClocks(self._cluster, path)
        self._control.share(None)
        if self._control.is_leader:
            Path(path).unlink()
        return clocks
