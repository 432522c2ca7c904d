"""The placements of Tessel's evaluation (arXiv 2311.15269) for any number of devices: V, X, K, M, NN.

Forward takes 1 and holds 1 until backward, which takes 3, starts; blocks on all devices take 1. Memory limits are those of the
4-device table grown with the number of devices: n, n, n+2, n+2, n+2. Smaller ones leave no schedule without bubbles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.workloads.blocks import Block, BlockGraph

FORWARD_S, BACKWARD_S, SHARED_S = 1.0, 3.0, 1.0


def v_shape(num_devices: int) -> BlockGraph:
    """A chain: forward through the devices, backward the other way."""
    return _graph(num_devices, num_devices, _training_chain("", range(num_devices)))


def x_shape(num_devices: int) -> BlockGraph:
    """Two chains in opposite directions."""
    there, back = range(num_devices), range(num_devices - 1, -1, -1)
    return _graph(num_devices, num_devices, [*_training_chain("", there), *_training_chain("r", back)])


def k_shape(num_devices: int) -> BlockGraph:
    """Two branches on half of the devices each, joined by blocks on all devices before forward and after backward."""
    half = num_devices // 2
    branches = [range(half), range(half, num_devices)]
    blocks = [_shared(num_devices, "join", (), 1.0)]
    ends = []
    for devices in branches:
        chain = _training_chain("", devices, ("join",))
        blocks += chain
        ends.append(chain[-1].name)
    return _graph(num_devices, num_devices + 2, [*blocks, _shared(num_devices, "part", tuple(ends), -1.0)])


def m_shape(num_devices: int) -> BlockGraph:
    """A chain with a block on all devices at both ends."""
    chain = _training_chain("", range(num_devices), ("first",))
    last = _shared(num_devices, "last", (chain[-1].name,))
    return _graph(num_devices, num_devices + 2, [_shared(num_devices, "first", ()), *chain, last])


def nn_shape(num_devices: int) -> BlockGraph:
    """M with one more block on all devices in the middle of forward and of backward."""
    half = num_devices // 2
    steps: list[tuple[str, int | None]] = [("first", None)]
    steps += [(f"f{device}", device) for device in range(half)]
    steps += [("middle", None)]
    steps += [(f"f{device}", device) for device in range(half, num_devices)]
    steps += [(f"b{device}", device) for device in range(num_devices - 1, half - 1, -1)]
    steps += [("back", None)]
    steps += [(f"b{device}", device) for device in range(half - 1, -1, -1)]
    steps += [("last", None)]
    blocks: list[Block] = []
    for name, device in steps:
        after = (blocks[-1].name,) if blocks else ()
        if device is None:
            blocks.append(_shared(num_devices, name, after))
        elif name.startswith("f"):
            blocks.append(Block(name=name, devices=(device,), seconds=FORWARD_S, memory=1.0, after=after))
        else:
            blocks.append(Block(name=name, devices=(device,), seconds=BACKWARD_S, memory=-1.0, after=after))
    return _graph(num_devices, num_devices + 2, blocks)


def forward_only(graph: BlockGraph) -> BlockGraph:
    """The same for inference: without the blocks that give memory back or come after one that does, and holding nothing."""
    backward = {block.name for block in graph.blocks if block.memory < 0}
    for index in graph.topological:
        block = graph.blocks[index]
        if not backward.isdisjoint(block.after):
            backward.add(block.name)
    kept = tuple(
        Block(name=block.name, devices=block.devices, seconds=block.seconds, after=block.after)
        for block in graph.blocks
        if block.name not in backward
    )
    return BlockGraph(num_devices=graph.num_devices, memory=graph.memory, blocks=kept, link_s=graph.link_s)


SHAPES: dict[str, Callable[[int], BlockGraph]] = {
    "V": v_shape,
    "X": x_shape,
    "K": k_shape,
    "M": m_shape,
    "NN": nn_shape,
}


def _training_chain(prefix: str, devices: Sequence[int], after: tuple[str, ...] = ()) -> list[Block]:
    """Forward over the devices in order, then backward."""
    blocks: list[Block] = []
    for device in devices:
        name = f"{prefix}f{device}"
        blocks.append(Block(name=name, devices=(device,), seconds=FORWARD_S, memory=1.0, after=after))
        after = (name,)
    for device in reversed(devices):
        name = f"{prefix}b{device}"
        blocks.append(Block(name=name, devices=(device,), seconds=BACKWARD_S, memory=-1.0, after=after))
        after = (name,)
    return blocks


def _shared(num_devices: int, name: str, after: tuple[str, ...], memory: float = 0.0) -> Block:
    return Block(name=name, devices=tuple(range(num_devices)), seconds=SHARED_S, memory=memory, after=after)


def _graph(num_devices: int, memory: float, blocks: Sequence[Block]) -> BlockGraph:
    return BlockGraph(num_devices=num_devices, memory=(float(memory),) * num_devices, blocks=tuple(blocks))
