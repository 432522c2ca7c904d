"""The messages between ranks, derived from the program and the order of the timetable, identically on every rank.

A rank runs its actions in order: it receives the messages of an action before it, and sends the results after it. Sends do not
block, so ranks cannot deadlock if one order of all actions contains the order of every rank. This is checked here
before anything runs: a timetable follows the dependencies of its graph, but parts may read more than those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.runtime.placed.parts import Action, Part, Program
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, Timetable
from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """An output of a part for a reader, or its gradient in the opposite direction. `sender` may equal `receiver`."""

    reader: str
    index: int
    """Index of the reader's input."""
    is_gradient: bool
    microbatch: int
    sender: int
    receiver: int

    @property
    def answered(self) -> Message:
        """Of a gradient: the message whose gradient it is."""
        return Message(
            reader=self.reader,
            index=self.index,
            is_gradient=not self.is_gradient,
            microbatch=self.microbatch,
            sender=self.receiver,
            receiver=self.sender,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One action of one micro-batch on one rank, and its messages."""

    block: str
    microbatch: int
    part: Part
    kind: str
    shard: int
    num_shards: int
    begins_block: bool
    ends_block: bool
    needs: tuple[Message, ...] = ()
    gives: tuple[Message, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Per rank: its tasks in order; and the tags of messages, numbered per pair of ranks."""

    tasks: tuple[tuple[Task, ...], ...]
    tags: dict[Message, int] = field(repr=False)


def make_routes(program: Program, table: Timetable) -> Routes:
    """The tasks of every rank; SpecError if ranks would deadlock."""
    if set(table.graph.index) != set(program.graph.index):
        raise SpecError(
            "the timetable is of other blocks than the program: make the program from the timetable's graph"
        )
    actions = program.actions()
    tasks = tuple(
        tuple(
            _task(program, rank, slot.block, slot.microbatch, actions[slot.block], place)
            for slot in slots
            for place in range(len(actions[slot.block]))
        )
        for rank, slots in enumerate(table.order)
    )
    _check_order(tasks)
    tags: dict[Message, int] = {}
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for message in (message for one in tasks for task in one for message in task.gives):
        if message.sender != message.receiver:
            pair = message.sender, message.receiver
            tags[message] = counts[pair]
            counts[pair] += 1
    return Routes(tasks=tasks, tags=tags)


def _task(  # noqa: PLR0913, PLR0917 - a position in the order
    program: Program, rank: int, block: str, microbatch: int, actions: tuple[Action, ...], place: int
) -> Task:
    part, kind = program.by_name[actions[place].part], actions[place].kind
    devices = program.devices[part.name]
    needs: list[Message] = []
    gives: list[Message] = []
    if kind == FORWARD:
        needs += _read(program, part, rank, microbatch)
        gives += _handed_on(program, part, rank, microbatch)
    if kind in (BACKWARD, INPUT):
        read, passed = (
            _read(program, part, rank, microbatch),
            _handed_on(program, part, rank, microbatch, only_backward=True),
        )
        needs += (message.answered for message in passed if _has_gradient(program, message))
        gives += (message.answered for message in read if _has_gradient(program, message))
    return Task(
        block=block,
        microbatch=microbatch,
        part=part,
        kind=kind,
        shard=devices.index(rank),
        num_shards=len(devices),
        begins_block=place == 0,
        ends_block=place == len(actions) - 1,
        needs=tuple(needs),
        gives=tuple(gives),
    )


def _read(program: Program, part: Part, rank: int, microbatch: int) -> Iterator[Message]:
    """One message per input and shard of its source."""
    for index, source in enumerate(part.inputs):
        for sender in program.devices[source.part]:
            yield Message(
                reader=part.name, index=index, is_gradient=False, microbatch=microbatch, sender=sender, receiver=rank
            )


def _has_gradient(program: Program, message: Message) -> bool:
    return program.by_name[message.reader].inputs[message.index].has_gradient


def _handed_on(
    program: Program, part: Part, rank: int, microbatch: int, *, only_backward: bool = False
) -> Iterator[Message]:
    for reader, index in program.readers(part.name):
        if only_backward and not reader.backward:
            continue
        for receiver in program.devices[reader.name]:
            yield Message(
                reader=reader.name,
                index=index,
                is_gradient=False,
                microbatch=microbatch,
                sender=rank,
                receiver=receiver,
            )


def _check_order(tasks: tuple[tuple[Task, ...], ...]) -> None:
    """Advance all ranks as far as messages allow. Shards of a block may communicate, so they start together."""
    sent: set[Message] = set()
    done: set[tuple[str, int, int]] = set()
    place = [0] * len(tasks)
    moved = True
    while moved:
        moved = False
        for rank, one in enumerate(tasks):
            while place[rank] < len(one):
                task = one[place[rank]]
                later = task.kind != FORWARD and (task.part.name, task.microbatch, rank) not in done
                if later or not sent.issuperset(task.needs):
                    break
                done.add((task.part.name, task.microbatch, rank))
                sent.update(task.gives)
                place[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} at {one[at].block!r} of micro-batch {one[at].microbatch}"
        for rank, (one, at) in enumerate(zip(tasks, place, strict=True))
        if at < len(one)
    ]
    if stuck:
        raise SpecError(
            f"the timetable cannot be run, for what it would read is never sent ({'; '.join(stuck)}): "
            "let 'after' of the blocks name every block that its parts read"
        )
