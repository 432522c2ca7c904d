"""Neighbours in the tree of ranks that have fallen silent: stopped, or stuck in a call that holds Python's lock.

Each rank sends an empty frame to a neighbour to which it has sent nothing in a round. The network's thread does so, hence
also while the main thread computes or waits, but not while the process is stopped or another thread keeps Python's lock.
Silence is counted in rounds of the rank that listens: time in which that one was stopped itself is no silence of others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from autotune.runtime.control.edge import Edge
from autotune.runtime.control.wire import BEAT, pack

LIMIT_VARIABLE = "AUTOTUNE_SILENCE_LIMIT"
_LIMIT_S = 600.0
"""Longer than any call that keeps Python's lock, such as reading a large pickle."""
_ROUNDS = 60
"""Of silence until the limit."""


class Silence:
    """When each neighbour was last active. Called by the network's thread alone."""

    def __init__(self) -> None:
        try:
            self.limit_s = float(os.environ[LIMIT_VARIABLE])
        except (KeyError, ValueError):
            self.limit_s = _LIMIT_S
        self._next_s = time.monotonic() + self.limit_s / _ROUNDS
        self._received: dict[Edge, int] = {}
        self._sent: dict[Edge, int] = {}
        self._silent: dict[Edge, int] = {}

    def until_round_s(self) -> float:
        """How long the thread may sleep."""
        return max(self._next_s - time.monotonic(), 0.0)

    def found(self, edges: Iterable[Edge]) -> list[Edge]:
        """Between rounds nothing; at a round send what shows that this rank is there, and return who is not."""
        if self.until_round_s():
            return []
        self._next_s = time.monotonic() + self.limit_s / _ROUNDS
        silent = []
        for edge in edges:
            if edge.num_sent == self._sent.get(edge) and not edge.has_output:
                edge.put(pack(BEAT, 0, 0, 0, b""))
                edge.flush()
            is_silent = edge.num_received_bytes == self._received.get(edge)
            self._silent[edge] = self._silent.get(edge, 0) + 1 if is_silent else 0
            self._received[edge], self._sent[edge] = edge.num_received_bytes, edge.num_sent
            if self._silent[edge] >= _ROUNDS:
                silent.append(edge)
        return silent

    def why(self, edge: Edge) -> str:
        """A sentence about a neighbour that was found."""
        return (
            f"rank {edge.rank} has not answered for {self.limit_s:g} s: it is stopped, or stuck in a call that keeps Python's "
            f"lock ({LIMIT_VARIABLE} sets other seconds)"
        )
