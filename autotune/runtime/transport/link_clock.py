"""Emulated links: one virtual clock per edge of the cluster's tree, shared by all transfers over the edge.

Edges are those of `autotune.workloads.topology`: one direction of a device's link, a NIC, a rack's uplink or a pair's cable, or
the total of a fabric. A clock holds the time at which its edge is free. A transfer starts when its sender is ready and occupies
every edge of its path for bytes / bandwidth, so concurrent transfers that share an edge take as long as their bytes
together. The clocks are in a small shared file because ranks of one emulated host are separate processes. All ranks must
therefore run on one machine, with one monotonic clock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autotune.simulate.edge_loads import EdgeLoads
from autotune.workloads.cluster import Cluster

_SLOTS = 4096
"""Collectives that may be in flight at once; slots are reused after that many."""
_DOUBLE = struct.Struct("d")


class LinkClocks:
    """The clocks of all edges of a cluster, in a file that every rank maps.

    Any thread of any rank may call `reserve` and `finish_collective`: a thread lock and a file lock guard the clocks. `post`
    writes a slot of its own and takes no lock. `set_links` and `close` are called with nothing in flight.
    """

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._edges = cluster.topology.edges
        self._ranks = len(cluster.devices)
        self._fd = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._fd, file_bytes(cluster))
        self._one_thread = threading.Lock()

    @staticmethod
    def create(cluster: Cluster) -> str:
        """Create a clock file. The caller removes it after every rank has mapped it."""
        fd, path = tempfile.mkstemp(prefix="autotune-links-")
        os.truncate(fd, file_bytes(cluster))
        os.close(fd)
        return path

    def set_links(self, cluster: Cluster) -> None:
        """Set the link speeds of the following transfers: the same tree, as a scenario has changed it."""
        assert len(cluster.topology.edges) == len(self._edges)
        self._edges = cluster.topology.edges

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)

    def reserve(self, loads: EdgeLoads, start_s: float) -> float:
        """Put `loads` on their edges from `start_s` on; the time at which the last byte has arrived."""
        with self._locked():
            return self._reserve(loads, start_s)

    def post(self, sequence: int, rank: int) -> None:
        """Record that this rank has joined collective number `sequence`."""
        self._write(self._slot(sequence) + 2 + rank, time.monotonic())

    def finish_collective(self, sequence: int, key: int, loads: EdgeLoads, latency_s: float) -> tuple[float, float]:
        """Start and end of a collective that every rank has joined, the same on every rank: the first call reserves.

        The real collective has completed when this is called, so every rank's post is in the file. `key` is unique to
        the collective and distinguishes a new slot from an old one.
        """
        slot = self._slot(sequence)
        with self._locked():
            start_s = max(self._read(slot + 2 + rank) for rank in range(self._ranks))
            if self._read(slot) != key:
                self._write(slot + 1, self._reserve(loads, start_s) + latency_s)
                self._write(slot, key)
            return start_s, self._read(slot + 1)

    def _reserve(self, loads: EdgeLoads, start_s: float) -> float:
        end_s = start_s
        for number, num_bytes in loads.items():
            if num_bytes > 0:
                free_s = max(start_s, self._read(number)) + num_bytes / self._edges[number].bytes_per_s
                self._write(number, free_s)
                end_s = max(end_s, free_s)
        return end_s

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # lockf excludes processes, not threads: one thread delivers collectives, another one posts messages.
        with self._one_thread:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _slot(self, sequence: int) -> int:
        return len(self._edges) + (sequence % _SLOTS) * (2 + self._ranks)

    def _read(self, index: int) -> float:
        return float(_DOUBLE.unpack_from(self._map, index * _DOUBLE.size)[0])

    def _write(self, index: int, value: float) -> None:
        _DOUBLE.pack_into(self._map, index * _DOUBLE.size, value)


def file_bytes(cluster: Cluster) -> int:
    """Size of a clock file: a clock per edge, then per slot a key, an end time, and a post time per rank."""
    return _DOUBLE.size * (len(cluster.topology.edges) + _SLOTS * (2 + len(cluster.devices)))
