"""The control network of a job: one connection from every rank to its parent in a tree of ranks, for all control messages.

Topics share it: a sender of gradients or a step coordinator opens a topic, and no socket. A message goes to the parent,
which may join it with others; to rank 0, relayed unread; or from rank 0 to all ranks, encoded once and relayed unread.
Topics are numbered in the order in which they are opened, which is the same on all ranks, within a scope. A trial is a
scope: after a trial that has failed on some rank before a topic was opened, ranks agree on numbers again.

A connection that ends without a farewell is a rank that was killed. Which rank has ended, and why it did where it could
say so, is known to every rank at once (`losses`), and every open topic fails with it.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from autotune.runtime.control import wire
from autotune.runtime.control.edge import Edge
from autotune.runtime.control.silence import Silence
from autotune.runtime.control.topic import Topic
from autotune.runtime.control.topic_table import JOB_SCOPE, Handler, Key, TopicTable
from autotune.runtime.control.tree import place_of
from autotune.runtime.control.wire import Frame, WireError, pack

LEFT, RETURNED, FAILED, KILLED, REPORTED = range(5)
"""How a rank has ended: after it had left the network; in order, but before that; by a failure; without a word; by a failure
that it has reported itself.
"""
_MOST_TEXT_BYTES = 2000
_NETWORKS: weakref.WeakSet[Network] = weakref.WeakSet()


class Network:
    """One rank's place in the network.

    Threads: any thread may call any method. The network's thread alone reads from connections, relays, calls handlers, and
    changes the tables of topics and of ended ranks; others leave it tasks.
    """

    def __init__(
        self, rank: int, size: int, connections: Mapping[int, socket.socket], *, num_rejected: int = 0
    ) -> None:
        """`connections`: to the parent and the children, by rank."""
        self.rank, self.size, self.num_rejected = rank, size, num_rejected
        self.place = place_of(rank, size)
        self._edges: dict[int, Edge] = {}
        self._children: list[Edge] = []
        self._tasks: deque[Callable[[], None]] = deque()
        self._topics = TopicTable(rank)
        self._scope = JOB_SCOPE
        self._numbers: defaultdict[int, int] = defaultdict(int)
        self._endings: dict[int, tuple[int, str]] = {}
        self._on_loss: list[Callable[[], None]] = []
        self.has_left = self._has_farewell = self._is_stopped = False
        self._goodbyes: set[int] = set()
        self._all_left = threading.Event()
        if size > 1:
            self._start(connections)

    def _start(self, connections: Mapping[int, socket.socket]) -> None:
        self._selector, self._silence = selectors.DefaultSelector(), Silence()
        self._awake, self._wake_up = socket.socketpair()
        for end in (self._awake, self._wake_up):
            end.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._edges = {other: Edge(sock, other, self._wake) for other, sock in connections.items()}
        for edge in self._edges.values():
            self._selector.register(edge.socket, selectors.EVENT_READ, edge)
        self._children = [self._edges[child] for child in self.place.children]
        self._thread = threading.Thread(target=self._run, name="autotune-network", daemon=True)
        _NETWORKS.add(self)
        self._thread.start()

    @classmethod
    def alone(cls) -> Network:
        """Of a job with one rank."""
        return cls(0, 1, {})

    # -- topics and scopes ---------------------------------------------------------------------------------------------

    def begin_scope(self) -> None:
        """Topics opened from here on belong to the next scope; called by all ranks, the same number of times."""
        self._scope += 1
        scope = self._scope
        if self.size > 1:
            self._do(lambda: self._topics.enter(scope))

    def fail_scope(self, why: str) -> None:
        """This rank has failed in this scope: the topics of it end on all ranks."""
        if self.size == 1:
            return
        scope = self._scope
        text = f"rank {self.rank}: {why}"
        self._send_to_neighbours(pack(wire.SCOPE_FAILED, scope, 0, self.rank, _encoded(text)), None)
        self._do(lambda: self._topics.fail(scope, text))

    def topic(self, *, for_job: bool = False) -> Topic:
        """Called by all ranks in the same order. `for_job`: it outlives scopes."""
        scope = JOB_SCOPE if for_job else self._scope
        self._numbers[scope] += 1
        return Topic(self, scope, self._numbers[scope] - 1)

    def open_topic(self, key: Key, handler: Handler) -> None:
        if self.size > 1:
            self._do(lambda: self._topics.add(key, handler, self.why_first if self.losses else None))

    def close_topic(self, key: Key) -> None:
        if self.size == 1 or self._is_stopped:
            return
        if threading.current_thread() is self._thread:
            self._topics.remove(key)
            return
        done = threading.Event()

        def remove() -> None:
            self._topics.remove(key)
            done.set()

        self._do(remove)
        while not done.wait(0.5) and self._thread.is_alive():
            continue

    # -- sending ---------------------------------------------------------------------------------------------------------

    def send_up(self, kind: int, key: Key, payload: bytes) -> None:
        parent = self.place.parent
        assert parent is not None, "rank 0 has no parent"
        if (edge := self._edges.get(parent)) is not None:
            edge.put(pack(kind, *key, self.rank, payload))
            edge.flush()

    def put_to_all(self, key: Key, payload: bytes) -> None:
        frame = pack(wire.TO_ALL, *key, self.rank, payload)
        for edge in self._children:
            edge.put(frame)

    def flush(self) -> None:
        for edge in self._children:
            edge.flush()

    @property
    def num_sent(self) -> int:
        """Messages on the connections of this rank; one may hold several frames."""
        return sum(edge.num_sent for edge in list(self._edges.values()))

    # -- ranks that end ----------------------------------------------------------------------------------------------------

    @property
    def losses(self) -> dict[int, str]:
        """The ranks that have failed or were killed, each with a sentence that names it and the cause."""
        return self._ended(FAILED, KILLED, REPORTED)

    @property
    def killed(self) -> dict[int, str]:
        """Those of them that said nothing."""
        return self._ended(KILLED)

    @property
    def left(self) -> dict[int, str]:
        """The ranks that have ended the job in order."""
        return self._ended(LEFT)

    @property
    def first_ended(self) -> int | None:
        """The first rank that has ended early."""
        return next((rank for rank, (how, _) in self._endings.copy().items() if how != LEFT), None)

    @property
    def why_first(self) -> str:
        """A sentence about it: what came after it may be its consequence."""
        return next((why for how, why in self._endings.copy().values() if how != LEFT), "")

    @property
    def has_reported(self) -> bool:
        """Whether a rank has printed already why it ends the job."""
        return bool(self._ended(REPORTED))

    @property
    def returned(self) -> dict[int, str]:
        """The ranks whose process has ended in order, but before the others did."""
        return self._ended(RETURNED)

    def on_loss(self, call: Callable[[], None]) -> None:
        """Have `call` called once in the network's thread when a rank has ended early; it must not wait."""
        self._on_loss.append(call)

    def farewell(self, how: int, why: str) -> None:
        """Tell the others how this rank ends. After that of a failure no other call counts."""
        if self._has_farewell or self._is_stopped:
            return
        self._has_farewell = how != LEFT
        self._send_to_neighbours(pack(wire.FAREWELL, 0, how, self.rank, _encoded(why)), None)

    def leave(self, timeout_s: float) -> bool:
        """The orderly end of the job on this rank: wait up to the timeout until all ranks have left; whether they have. A rank
        that has left goes on relaying for those that have not, until its process ends.
        """
        self.has_left = True
        if self.size == 1:
            return True
        self._do(lambda: self._add_goodbye(self.rank))
        if not self._all_left.wait(0.0 if self.losses else timeout_s):
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """Close all connections. Without `leave` before it, the others take this rank for a killed one."""
        if self._is_stopped or self.size == 1:
            return
        if self.has_left and not self._all_left.is_set():
            self.farewell(LEFT, f"rank {self.rank} has left")
        self._is_stopped = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def after_fork(self) -> None:
        """In a child process: its copies of the connections must not outlive this process."""
        self._is_stopped = self.has_left = self._has_farewell = True
        for edge in self._edges.values():
            edge.is_broken = True
            with suppress(OSError):
                edge.socket.close()
        with suppress(OSError):
            self._awake.close()
            self._wake_up.close()

    def _ended(self, *hows: int) -> dict[int, str]:
        return {rank: why for rank, (how, why) in self._endings.copy().items() if how in hows}

    # -- the network's thread ------------------------------------------------------------------------------------------------

    def _do(self, task: Callable[[], None]) -> None:
        self._tasks.append(task)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_up.send(b"\0")

    def _run(self) -> None:
        while not self._is_stopped:
            for key, events in self._selector.select(self._silence.until_round_s()):
                edge = key.data
                if edge is None:
                    self._run_tasks()
                    continue
                if events & selectors.EVENT_WRITE:
                    edge.resume()
                if events & selectors.EVENT_READ:
                    self._read(edge)
            for edge in list(self._edges.values()):
                self._send_on(edge)
            for edge in self._silence.found([one for one in self._edges.values() if one.rank not in self._endings]):
                self._drop(edge, self._silence.why(edge))
        self._end()

    def _end(self) -> None:
        """Send what is left without waiting, and close."""
        self._topics.lose(f"rank {self.rank} has left the network")
        for edge in self._edges.values():
            edge.flush()
            edge.close()
        self._selector.close()
        self._awake.close()
        self._wake_up.close()
        self._all_left.set()

    def _run_tasks(self) -> None:
        with suppress(BlockingIOError):
            self._awake.recv(4096)
        while self._tasks:
            self._tasks.popleft()()

    def _send_on(self, edge: Edge) -> None:
        if edge.has_output and not edge.is_full:
            edge.flush()
        if edge.rank in self._edges and not edge.is_broken:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if edge.is_full else 0)
            if self._selector.get_key(edge.socket).events != wanted:
                self._selector.modify(edge.socket, wanted, edge)

    def _read(self, edge: Edge) -> None:
        try:
            data = edge.read()
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._drop(edge)
            return
        try:
            frames = list(edge.feed(data))
            down = b"".join(frame.raw for frame in frames if frame.kind == wire.TO_ALL)
            if down and self._children and edge.rank == self.place.parent:
                for child in self._children:
                    child.put(down)
                self.flush()
            for frame in frames:
                self._handle(edge, frame)
        except WireError as error:
            self._note(edge.rank, FAILED, f"rank {edge.rank} has sent {error}", None)
            self._drop(edge)

    def _handle(self, edge: Edge, frame: Frame) -> None:
        kind = frame.kind
        is_up = edge.rank != self.place.parent
        if kind == wire.TO_ALL and not is_up:
            self._topics.deliver(frame, lambda handler, payload: handler.from_root(payload))
        elif kind == wire.HOP and is_up:
            self._topics.deliver(frame, lambda handler, payload: handler.from_child(edge.rank, payload))
        elif kind == wire.TO_ROOT and is_up:
            if self.place.parent is None:
                self._topics.deliver(frame, lambda handler, payload: handler.from_rank(frame.origin, payload))
            elif (parent := self._edges.get(self.place.parent)) is not None:
                parent.put(frame.raw)
        elif kind == wire.FAREWELL:
            self._note(frame.origin, frame.number, frame.payload.decode(errors="replace"), edge)
        elif kind == wire.SCOPE_FAILED:
            self._send_to_neighbours(frame.raw, edge)
            self._topics.fail(frame.scope, frame.payload.decode(errors="replace"))
        elif kind == wire.GOODBYE and is_up:
            self._add_goodbye(edge.rank)
        elif kind == wire.END and not is_up:
            self._end_for_all(frame.raw)
        else:
            raise WireError(f"a frame of kind {kind} that does not belong here")

    # -- ranks that end: in the network's thread --------------------------------------------------------------------------------

    def _drop(self, edge: Edge, why: str = "") -> None:
        """The other end has closed the connection, or is silent for the reason given."""
        if self._edges.get(edge.rank) is not edge:
            return
        self._selector.unregister(edge.socket)
        edge.close()
        del self._edges[edge.rank]
        self._children = [child for child in self._children if child is not edge]
        if edge.rank not in self._endings and not (self._all_left.is_set() or self._is_stopped):
            gone = f"rank {edge.rank} is gone without a farewell: was it killed?"
            self._note(edge.rank, KILLED, why or gone, edge)
        self._add_goodbye(edge.rank)

    def _note(self, rank: int, how: int, why: str, edge: Edge | None) -> None:
        """A rank has ended: tell all but the neighbour that the news came from."""
        if rank in self._endings and self._endings[rank][0] >= how:
            return
        self._endings[rank] = (how, why)
        self._send_to_neighbours(pack(wire.FAREWELL, 0, how, rank, _encoded(why)), edge)
        if how == LEFT:
            return
        if how != RETURNED:
            self._topics.lose(why)
        for call in self._on_loss:
            call()

    def _send_to_neighbours(self, frame: bytes, source: Edge | None) -> None:
        for edge in list(self._edges.values()):
            if edge is not source:
                edge.put(frame)
                edge.flush()

    def _add_goodbye(self, rank: int) -> None:
        """Once a whole subtree has left, its root tells the parent; rank 0 tells all."""
        if rank != self.place.parent:
            self._goodbyes.add(rank)
        if self._goodbyes != {self.rank, *self.place.children}:
            return
        parent = self._edges.get(self.place.parent) if self.place.parent is not None else None
        if parent is None:  # rank 0, or the parent's process has ended
            self._end_for_all(pack(wire.END, 0, 0, 0, b""))
        else:
            parent.put(pack(wire.GOODBYE, 0, 0, self.rank, b""))
            parent.flush()

    def _end_for_all(self, frame: bytes) -> None:
        for child in self._children:
            child.put(frame)
        self.flush()
        self._all_left.set()


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")[:_MOST_TEXT_BYTES]


def _close_after_fork() -> None:
    for network in list(_NETWORKS):
        network.after_fork()


os.register_at_fork(after_in_child=_close_after_fork)
