"""The control network: the tree, frames, topics, scopes, ranks that end; and strangers at its listeners."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from typing import Any

import pytest

from autotune.runtime.control import handshake
from autotune.runtime.control.listener import Listener, NotAllConnectedError
from autotune.runtime.control.network import FAILED, Network
from autotune.runtime.control.open_network import _connect
from autotune.runtime.control.tree import place_of
from autotune.runtime.control.wire import HEADER_BYTES, MAX_FRAME_BYTES, TO_ALL, FrameReader, Joiner, WireError, pack
from tests.gloo_ranks import on_networks


class Kept:
    """A handler that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[Any, ...]] = []
        self.reasons: list[str] = []
        self.changed = threading.Condition()

    def _keep(self, *what: Any) -> None:
        with self.changed:
            self.received.append(what)
            self.changed.notify_all()

    def from_child(self, child: int, payload: bytes) -> None:
        self._keep("child", child, payload)

    def from_rank(self, rank: int, payload: bytes) -> None:
        self._keep("rank", rank, payload)

    def from_root(self, payload: bytes) -> None:
        self._keep("root", payload)

    def lost(self, why: str) -> None:
        with self.changed:
            self.reasons.append(why)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, 20), self.received

    def wait_lost(self) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: self.reasons, 20)
        return self.reasons[0]


# --- the tree ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 9, 10, 64, 257])
def test_every_rank_but_0_has_one_parent_and_subtrees_are_ranges(size: int) -> None:
    places = [place_of(rank, size) for rank in range(size)]
    children = sorted(child for place in places for child in place.children)
    assert children == list(range(1, size))
    for place in places:
        below = [place.rank]
        for child in place.children:
            assert places[child].parent == place.rank
            below += range(child, places[child].end)
        assert below == list(range(place.rank, place.end))


def test_a_message_passes_few_ranks() -> None:
    def depth(rank: int) -> int:
        parent = place_of(rank, 1024).parent
        return 0 if parent is None else 1 + depth(parent)

    assert max(depth(rank) for rank in range(1024)) <= 10
    assert len(place_of(0, 1024).children) == 1


# --- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 10_000, 10**9])
def test_frames_survive_any_cut_of_the_stream(piece: int) -> None:
    payloads = [b"", b"a", secrets.token_bytes(3 * MAX_FRAME_BYTES // 2 if piece > 100 else 50), b"end"]
    stream = b"".join(pack(TO_ALL, 3, 4, 5, payload) for payload in payloads)
    reader, joiner, found = FrameReader(), Joiner(), []
    for start in range(0, len(stream), piece):
        for frame in reader.feed(stream[start : start + piece]):
            assert (frame.kind, frame.scope, frame.number, frame.origin) == (TO_ALL, 3, 4, 5)
            assert len(frame.raw) <= HEADER_BYTES + MAX_FRAME_BYTES
            found.append(joiner.message(frame))
    assert [one for one in found if one is not None] == payloads


def test_a_frame_that_is_too_long_is_refused() -> None:
    with pytest.raises(WireError, match="the limit is"):
        list(FrameReader().feed(b"\xff" * HEADER_BYTES))


# --- topics ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 12])
def test_messages_go_up_hop_by_hop_to_rank_0_and_down_to_all(size: int) -> None:
    large = secrets.token_bytes(3 * MAX_FRAME_BYTES)

    def run(network: Network) -> list[tuple[Any, ...]]:
        kept, topic = Kept(), network.topic()
        if network.rank == 0:
            time.sleep(0.1)  # messages come before the topic is open
        topic.open(kept)
        if network.rank == 0:
            kept.wait(size - 1 + len(network.place.children))
            topic.to_all(large)
        else:
            topic.to_root(b"to 0")
            topic.to_parent(b"hop")
            kept.wait(1 + len(network.place.children))
        topic.close()
        return kept.received

    found = on_networks(size, run)
    assert sorted(one for one in found[0] if one[0] == "rank") == [("rank", rank, b"to 0") for rank in range(1, size)]
    for rank, received in enumerate(found):
        assert sorted(one for one in received if one[0] == "child") == [
            ("child", child, b"hop") for child in place_of(rank, size).children
        ]
        assert [one for one in received if one[0] == "root"] == ([("root", large)] if rank else [])


def test_ranks_agree_on_topics_again_after_one_has_failed_in_a_scope() -> None:
    """Rank 1 opens fewer topics in its first scope; those of the others end with its reason."""

    def run(network: Network) -> tuple[list[str], list[tuple[Any, ...]]]:
        network.begin_scope()
        reasons = []
        if network.rank == 1:
            network.fail_scope("ValueError: no model")
        else:
            for _ in range(2):
                kept = Kept()
                network.topic().open(kept)
                reasons.append(kept.wait_lost())
        network.begin_scope()
        kept, topic = Kept(), network.topic()
        topic.open(kept)
        if network.rank == 0:
            topic.to_all(b"again")
        else:
            kept.wait(1)
        return reasons, kept.received

    found = on_networks(3, run)
    assert [one[0] for one in found] == [["rank 1: ValueError: no model"] * 2, [], ["rank 1: ValueError: no model"] * 2]
    assert [one[1] for one in found] == [[], [("root", b"again")], [("root", b"again")]]


# --- ranks that end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1, 6, 11])
@pytest.mark.parametrize("with_farewell", [True, False])
def test_all_others_know_which_rank_has_ended_and_why(lost: int, with_farewell: bool) -> None:
    """Rank 0, two inner ranks (the tree falls apart) and one without children."""
    has_ended, have_looked = threading.Event(), threading.Barrier(11)

    def run(network: Network) -> tuple[str, list[int]] | None:
        kept, topic = Kept(), network.topic()
        topic.open(kept)
        if network.rank == lost:
            time.sleep(0.1)
            if with_farewell:
                network.farewell(FAILED, f"rank {lost}: ValueError: boom")
            network._all_left.set()  # as a process that has ended, it reports nothing about the connections that it loses
            for edge in list(network._edges.values()):
                edge.socket.shutdown(socket.SHUT_RDWR)
                time.sleep(0.02)
            has_ended.set()
            return None
        why = kept.wait_lost()
        assert has_ended.wait(10)
        time.sleep(0.3)
        losses = [*network.losses]
        network._all_left.set()
        have_looked.wait(20)
        return why, losses

    found = on_networks(12, run)
    text = (
        f"rank {lost}: ValueError: boom" if with_farewell else f"rank {lost} is gone without a farewell: was it killed?"
    )
    assert [one for rank, one in enumerate(found) if rank != lost] == [(text, [lost])] * 11


def test_leaving_in_order_is_no_loss() -> None:
    def run(network: Network) -> dict[int, str]:
        kept = Kept()
        network.topic().open(kept)
        time.sleep(0.01 * network.rank)
        assert network.leave(10)
        return network.losses

    assert on_networks(12, run) == [{}] * 12


def test_a_forked_process_closes_its_copies_of_the_connections() -> None:
    """Else a worker process would keep a killed rank's connections open, and hide that the rank is gone."""

    def run(network: Network) -> int:
        if network.rank:
            return 0
        descriptors = [edge.socket.fileno() for edge in network._edges.values()]
        child = os.fork()
        if child == 0:
            still_open = 0
            for descriptor in descriptors:
                try:
                    os.fstat(descriptor)
                    still_open += 1
                except OSError:
                    pass
            os._exit(still_open)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert on_networks(2, run) == [0, 0]


# --- strangers ------------------------------------------------------------------------------------------------------------

SECRET = b"s" * handshake.SECRET_BYTES


def accept_in_thread(
    listener: Listener, children: list[int], timeout_s: float = 20.0
) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(listener.accept(children, rank=0, secret=SECRET, deadline=time.monotonic() + timeout_s))
        except NotAllConnectedError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def child_of(address: tuple[str, int], rank: int) -> socket.socket:
    place = place_of(rank, 3)
    return _connect(address, SECRET, place, time.monotonic() + 20)


def test_garbage_replays_and_a_flood_do_not_keep_the_children_out() -> None:
    listener = Listener("127.0.0.1")
    assert listener.address[0] == "127.0.0.1"
    thread, found = accept_in_thread(listener, [1, 2])
    first = child_of(listener.address, 1)
    strangers = []
    for message in (b"GET / HTTP/1.1\r\n\r\n" * 10, b"", b"\0" * handshake.ANSWER_BYTES, b"\x80\x04pickle"):
        sock = socket.create_connection(listener.address)
        sock.sendall(message)
        strangers.append(sock)
    recorded = handshake.answer_of(SECRET, b"n" * 16, b"m" * 16, child=2, parent=0)  # of another nonce
    replay = socket.create_connection(listener.address)
    replay.sendall(recorded)
    strangers += [replay, *(socket.create_connection(listener.address) for _ in range(200))]
    second = child_of(listener.address, 2)
    thread.join(20)
    assert set(found[0]) == {1, 2}
    assert listener.num_rejected >= 200
    for sock in (*strangers, first, second, *found[0].values()):
        sock.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(listener.address)


def test_a_child_finds_that_the_listener_does_not_know_the_secret() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def impostor() -> None:
        sock, _ = server.accept()
        sock.sendall(b"n" * handshake.NONCE_BYTES)
        sock.recv(handshake.ANSWER_BYTES)
        sock.sendall(b"\0" * handshake.MAC_BYTES)
        sock.close()

    thread = threading.Thread(target=impostor)
    thread.start()
    with socket.create_connection(server.getsockname()) as sock:
        assert not handshake.prove_to_parent(sock, SECRET, child=1, parent=0, deadline=time.monotonic() + 5)
    thread.join()
    server.close()


def test_children_that_do_not_come_are_named() -> None:
    listener = Listener("127.0.0.1")
    thread, found = accept_in_thread(listener, [1, 2], timeout_s=0.3)
    thread.join()
    assert str(found[0]) == "ranks [1, 2] did not connect to rank 0 in time"


def test_a_proof_is_bound_to_ranks_and_nonces() -> None:
    nonce, own = handshake.new_nonce(), handshake.new_nonce()
    answer = handshake.answer_of(SECRET, nonce, own, child=4, parent=2)
    assert handshake.check_answer(SECRET, nonce, answer, parent=2) is not None
    for secret, seen, text, parent in (
        (SECRET, handshake.new_nonce(), answer, 2),
        (SECRET, nonce, answer, 3),
        (SECRET, nonce, b"\x05" + answer[1:], 2),
        (b"x" * 32, nonce, answer, 2),
    ):
        assert handshake.check_answer(secret, seen, text, parent=parent) is None
