"""The order of passes of each pipeline stage: the simulator and the runtime read a plan's schedule here.

GPipe (Huang et al. 2019) runs all forward passes, then all backward passes. 1F1B (PipeDream, Megatron) starts a backward pass as
soon as it can, so that stage s of p holds at most p-s micro-batches. Zero-bubble (Qi et al. 2023, H1) cuts a backward pass in two
and delays the half that computes gradients of weights, more on later stages, so that no stage holds more than 1F1B's first.
A searched order is arbitrary and is stored per stage: "F0 F1 B0 B1", with I and W for the halves of a B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT
from autotune.workloads.errors import SpecError

SEARCHED = "searched"
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", SEARCHED)
Pass = tuple[str, int]
"""`FORWARD`, `BACKWARD`, `INPUT` or `WEIGHT`, and the micro-batch."""
_LETTERS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
_KINDS = {kind: letter for letter, kind in _LETTERS.items()}


def stage_passes(
    schedule: str, num_stages: int, micro_batches: int, order: Sequence[str] = ()
) -> tuple[tuple[Pass, ...], ...]:
    """Per stage: its passes in order."""
    if schedule == SEARCHED:
        return tuple(_parsed(text, stage) for stage, text in enumerate(order))
    return tuple(
        tuple(classic_passes(schedule, micro_batches, num_stages - stage, stage)) for stage in range(num_stages)
    )


def as_text(passes: Sequence[Pass]) -> str:
    """An order as text, as in a plan."""
    return " ".join(f"{_KINDS[kind]}{microbatch}" for kind, microbatch in passes)


def is_split(passes: Sequence[Pass]) -> bool:
    """Whether a stage's backward passes are split."""
    return any(kind == INPUT for kind, _ in passes)


def check_order(order: Sequence[str], num_stages: int, micro_batches: int) -> None:
    """Refuse a searched order with a missing or repeated pass, or with a deadlock."""
    if len(order) != num_stages:
        raise SpecError(f"the plan has orders for {len(order)} stages but {num_stages} stages: give one for each")
    stages = stage_passes(SEARCHED, num_stages, micro_batches, order)
    for stage, passes in enumerate(stages):
        kinds = (FORWARD, INPUT, WEIGHT) if is_split(passes) else (FORWARD, BACKWARD)
        expected = {(kind, microbatch) for kind in kinds for microbatch in range(micro_batches)}
        if len(passes) != len(expected) or set(passes) != expected:
            raise SpecError(
                f"the order of stage {stage} does not have every pass of its {micro_batches} micro-batches once: write F and B "
                "(or F, I and W) of each, as in 'F0 F1 B0 B1'"
            )
    if (stuck := _stuck(stages)) is not None:
        raise SpecError(
            f"the plan's order would wait for ever: stage {stuck} comes to a pass before what it needs; let every stage take "
            "forward passes before their backward passes, and micro-batches in an order that its neighbours can follow"
        )


def classic_passes(schedule: str, micro_batches: int, admitted: int, delayed: int) -> Iterator[Pass]:
    """Of a stage that holds at most `admitted` micro-batches in 1F1B and delays the weights of `delayed` in zero-bubble."""
    ahead = micro_batches if schedule == "gpipe" else min(admitted, micro_batches)
    behind = min(delayed, micro_batches) if schedule == "zero-bubble" else 0
    yield from ((FORWARD, number) for number in range(ahead))
    for number in range(micro_batches):
        if schedule == "zero-bubble":
            yield INPUT, number
            if number >= behind:
                yield WEIGHT, number - behind
        else:
            yield BACKWARD, number
        if ahead + number < micro_batches:
            yield FORWARD, ahead + number
    yield from ((WEIGHT, number) for number in range(micro_batches - behind, micro_batches))


def _parsed(text: str, stage: int) -> tuple[Pass, ...]:
    words = text.split()
    for word in words:
        if word[0] not in _LETTERS or not word[1:].isdecimal():
            raise SpecError(
                f"the order of stage {stage} has {word!r}: write a pass and a micro-batch, such as F0 or B12"
            )
    return tuple((_LETTERS[word[0]], int(word[1:])) for word in words)


def _stuck(stages: Sequence[Sequence[Pass]]) -> int | None:
    """A stage that never finishes; None if all do."""
    done: set[tuple[int, str, int]] = set()
    places, moved = [0] * len(stages), True
    while moved:
        moved = False
        for stage, passes in enumerate(stages):
            while places[stage] < len(passes) and _needs(passes[places[stage]], stage, len(stages)) <= done:
                kind, microbatch = passes[places[stage]]
                done.add((stage, BACKWARD if kind == INPUT else kind, microbatch))
                places[stage] += 1
                moved = True
    return next((stage for stage, passes in enumerate(stages) if places[stage] < len(passes)), None)


def _needs(one: Pass, stage: int, num_stages: int) -> set[tuple[int, str, int]]:
    kind, microbatch = one
    if kind == FORWARD:
        return {(stage - 1, FORWARD, microbatch)} if stage else set()
    if kind == WEIGHT:
        return {(stage, BACKWARD, microbatch)}
    after = {(stage + 1, BACKWARD, microbatch)} if stage + 1 < num_stages else set()
    return {(stage, FORWARD, microbatch)} | after
