"""What the control plane costs rank 0 as ranks grow: CPU time and bytes of a step. `start_up` counts messages of the start.

    python -m tests.benchmarks.control_plane [--ranks 64 1024] [--steps N]

A step exchanges 1 GiB in partitions of 1 MiB: 41 fusion buffers of 25 MiB, credit for 4 partitions. Rank 0 is a process of
its own with the real scheduler, whose partitions complete as soon as they are posted, so no two schedules share a message.
The other ranks are the real ones, as threads of a second process; beyond 64 ranks those without children are
simulated: a connection that proves itself, reports its rounds, and reads what arrives. Real sockets of this machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.edge import Edge
from autotune.runtime.control.handshake import prove_to_parent
from autotune.runtime.control.network import Network
from autotune.runtime.control.open_network import open_network
from autotune.runtime.control.ready import ReadyRanks, ReadyRound, ScheduledPartition
from autotune.runtime.control.tree import place_of
from autotune.runtime.control.wire import HOP, pack
from autotune.runtime.reduce.coordinator import _READY, Coordinator, Follower
from autotune.runtime.reduce.send_order import SendOrder

MIB = 1 << 20
PARTITION_BYTES, CREDIT_BYTES, BUFFER_BYTES, TOTAL_BYTES = MIB, 4 * MIB, 25 * MIB, 1 << 30
MOST_REAL = 64
BARS_S = {64: 0.020, 1024: 0.100}
MOST_BYTES = 50_000
PUBLISHED = Path("results") / "published" / "control-plane" / "control-plane.json"


def buffer_sizes() -> list[int]:
    whole, rest = divmod(TOTAL_BYTES, BUFFER_BYTES)
    return [BUFFER_BYTES] * whole + ([rest] if rest else [])


def ready_round(buffer: int, num_bytes: int, step: int) -> ReadyRound:
    return ReadyRound(buffer, 0, num_bytes, num_bytes // 4, cuttable=True, position=step % 16)


class PipedControl:
    """The control plane of the two processes: rank 0's, and one for all ranks of the other process."""

    def __init__(self, rank: int, size: int, shared: Any) -> None:
        self.rank, self.size, self._shared = rank, size, shared
        self.num_shared = 0

    def share(self, message: Any) -> list[Any]:
        self.num_shared += 1
        return list(self._shared(self.rank, message))


def leader(size: int, steps: int, pipe: Any) -> None:
    """Rank 0."""

    def share(_rank: int, message: Any) -> Any:
        pipe.send(message)
        return pipe.recv()

    control = PipedControl(0, size, share)
    network = open_network(control)
    order = SendOrder(
        num_ranks=size,
        partition_bytes=PARTITION_BYTES,
        credit_bytes=CREDIT_BYTES,
        priorities=range(len(buffer_sizes()), 0, -1),
    )
    posted: list[ScheduledPartition] = []
    is_waiting: list[bool] = []
    changed = threading.Event()

    def post(partition: ScheduledPartition) -> None:
        posted.append(partition)
        if is_waiting:
            changed.set()

    coordinator = Coordinator(network, order, post, lambda why: sys.stderr.write(f"{why}\n"))
    num_partitions = sum(-(-num_bytes // PARTITION_BYTES) for num_bytes in buffer_sizes())
    rows: list[dict[str, float]] = []
    for step in range(steps):
        pipe.recv()  # all other ranks are idle
        sent = [edge.num_sent_bytes for edge in network._children]
        received = sum(edge.num_received_bytes for edge in network._children)
        begun_s, wall_s = time.process_time(), time.monotonic()
        for buffer, num_bytes in enumerate(buffer_sizes()):
            coordinator.mark_ready(ready_round(buffer, num_bytes, step))
        pipe.send("go")
        done = 0
        while done < num_partitions:
            if done == len(posted):
                changed.clear()
                is_waiting.append(True)
                if done == len(posted):
                    assert changed.wait(120), f"{done} of {num_partitions} partitions were scheduled"
                is_waiting.clear()
                continue
            coordinator.completed(posted[done].num_bytes)
            done += 1
        used_s = time.process_time() - begun_s
        posted.clear()
        now = [edge.num_sent_bytes for edge in network._children]
        rows.append(
            {
                "cpu_s": used_s,
                "wall_s": time.monotonic() - wall_s,
                "sent_per_child": max(b - a for a, b in zip(sent, now, strict=True)),
                "sent": sum(now) - sum(sent),
                "received": sum(edge.num_received_bytes for edge in network._children) - received,
            }
        )
        pipe.send("done")
    pipe.send(rows)
    time.sleep(60)  # until the other process has read it and ends this one


class Leaves:
    """Simulated ranks without children: one thread for all of them."""

    def __init__(self, places: Sequence[Any], shared: list[Any]) -> None:
        secret = bytes.fromhex(shared[0][1])
        self._selector = selectors.DefaultSelector()
        self.edges: list[Edge] = []
        for place in places:
            sock = socket.create_connection(tuple(shared[place.parent][0]), timeout=60)
            deadline = time.monotonic() + 60
            assert prove_to_parent(sock, secret, child=place.rank, parent=place.parent, deadline=deadline)
            edge = Edge(sock, place.rank, lambda: None)
            self.edges.append(edge)
            self._selector.register(sock, selectors.EVENT_READ, edge)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while self.edges:
            for key, _ in self._selector.select(timeout=1.0):
                if not key.data.read():
                    self._selector.unregister(key.fileobj)

    def mark_ready(self, buffer: int, num_bytes: int, step: int) -> None:
        for edge in self.edges:
            part = ReadyRanks.of(edge.rank, ready_round(buffer, num_bytes, step))
            edge.put(pack(HOP, 0, 0, edge.rank, _READY + part.pack()))
            edge.flush()


def followers(size: int, steps: int, pipe: Any) -> tuple[int, list[dict[str, float]]]:  # noqa: C901 - the other process, from its start to its end
    """All ranks but rank 0; the number of simulated ones, and rank 0's figures."""
    places = [place_of(rank, size) for rank in range(1, size)]
    simulated = [place for place in places if size > MOST_REAL and not place.children]
    real = [place for place in places if place not in simulated]
    shared: list[Any] = [None] * size
    barrier = threading.Barrier(len(real) + 1)

    def share(rank: int, message: Any) -> Any:
        shared[rank] = message
        barrier.wait(60)  # all have set theirs; rank 0's message is added
        barrier.wait(60)
        found = list(shared)
        barrier.wait(60)
        return found

    networks: dict[int, Network] = {}

    def join(rank: int) -> None:
        networks[rank] = open_network(PipedControl(rank, size, share), timeout_s=120)

    threads = [threading.Thread(target=join, args=(place.rank,), daemon=True) for place in real]
    for thread in threads:
        thread.start()
    for _ in range(2):
        barrier.wait(60)
        shared[0] = pipe.recv()
        for place in simulated:
            shared[place.rank] = shared[0]  # the same host; simulated ranks listen nowhere
        pipe.send(shared)
        barrier.wait(60)
        barrier.wait(60)
    leaves = Leaves(simulated, shared)
    for thread in threads:
        thread.join(120)
    ended = {rank: threading.Semaphore(0) for rank in networks}
    counts = dict.fromkeys(networks, 0)
    num_partitions = sum(-(-num_bytes // PARTITION_BYTES) for num_bytes in buffer_sizes())

    def posted(rank: int) -> None:
        counts[rank] += 1
        if counts[rank] % num_partitions == 0:
            ended[rank].release()

    endpoints = {
        rank: Follower(network, lambda _, rank=rank: posted(rank), lambda _: None) for rank, network in networks.items()
    }
    for step in range(steps):
        pipe.send("ready")
        assert pipe.recv() == "go"
        for buffer, num_bytes in enumerate(buffer_sizes()):
            leaves.mark_ready(buffer, num_bytes, step)
            for endpoint in endpoints.values():
                endpoint.mark_ready(ready_round(buffer, num_bytes, step))
        assert pipe.recv() == "done"
        for one in ended.values():
            assert one.acquire(timeout=120)
    rows = pipe.recv()
    for network in networks.values():
        network.has_left = True
        network.stop()
    return len(simulated), rows


def measure(size: int, steps: int) -> dict[str, Any]:
    """Both processes; the figures of rank 0."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=leader, args=(size, steps, there), daemon=True)
    process.start()
    num_simulated, rows = followers(size, steps, here)
    rows = rows[1:]  # the first step warms up
    process.kill()
    place = place_of(0, size)
    return {
        "ranks": size,
        "simulated_ranks": num_simulated,
        "children_of_rank_0": len(place.children),
        "cpu_s": median(row["cpu_s"] for row in rows),
        "cpu_s_of_steps": [round(row["cpu_s"], 5) for row in rows],
        "bytes_received_per_rank": median(row["sent_per_child"] for row in rows),
        "bytes_sent_by_rank_0": median(row["sent"] for row in rows),
        "bytes_received_by_rank_0": median(row["received"] for row in rows),
        "bar_cpu_s": BARS_S.get(size),
        "bar_bytes": MOST_BYTES,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 1024])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, default=PUBLISHED)
    options = parser.parse_args(arguments)
    found = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for size in options.ranks:
        row = measure(size, options.steps)
        found.append(row)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        write_json(
            options.out,
            {
                "command": "nox -s control_plane",
                "label": "measured on this machine; of more than 64 ranks those without children are simulated",
                "load_before": os.getloadavg()[0],
                "rows": found,
                "environment": describe_environment(),
            },
        )


if __name__ == "__main__":
    main()
