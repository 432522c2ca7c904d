"""Models with two branches on disjoint devices: one that parts after a shared embedding, one whose towers are joined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.runtime.placed.parts import Part, Source
from autotune.runtime.placed.shards import ClassShardedLoss, own_rows, shard_of
from autotune.runtime.placed.stages import Assembly, Chain, StageBlocks, add_chain, even_stages, parameter_names
from autotune.runtime.placed.vocabulary import Vocabulary
from autotune.workloads.blocks import Block, BlockGraph
from tests.autotune.runtime.placed.placements import Placed
from tests.autotune.schedule.shapes import k_shape

TOKENS, WIDTH, CLASSES = 24, 8, 10
SECOND_WEIGHT = 0.5


@dataclass(frozen=True)
class Branch:
    """As much of a workload as a chain needs: the loss of one branch, by its own targets."""

    target: int
    name: str = "branch"

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits = model(batch[0])
        return functional.cross_entropy(logits.flatten(0, -2), batch[self.target].flatten())


def _branch(num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, num_out))


class Parting(nn.Module):
    """An embedding that two branches read, each with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, WIDTH)
        self.a, self.b = _branch(CLASSES), _branch(TOKENS)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        stream = self.token(batch[0])
        a = Branch(1).loss(lambda _: self.a(stream), batch)
        b = Branch(2).loss(lambda _: self.b(stream), batch)
        return a + SECOND_WEIGHT * b


class Towers(nn.Module):
    """Two towers read different inputs; what they make is joined and classified."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _branch(WIDTH), _branch(WIDTH)
        self.head = nn.Linear(2 * WIDTH, CLASSES, bias=False)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        joined = torch.cat([self.a(batch[0]), self.b(batch[1])], dim=-1)
        return functional.cross_entropy(self.head(joined), batch[2])


class Join(ClassShardedLoss):
    """The towers' head on all devices."""

    def forward(self, a: Tensor, b: Tensor, targets: Tensor) -> Tensor:
        return super().forward(torch.cat([a, b], dim=-1), targets)


def parting_batch(num: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randint(top, (num, 5), generator=draw) for top in (TOKENS, CLASSES, TOKENS))


def towers_batch(num: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randn(num, WIDTH, generator=draw, dtype=torch.float64) for _ in range(2))
    return a, b, torch.randint(CLASSES, (num,), generator=draw)


def _blocks(devices: range) -> list[StageBlocks]:
    return [StageBlocks(forward=f"f{device}", backward=f"b{device}") for device in devices]


def k_placed(num: int) -> Placed:
    """`Parting` on the K shape: its embedding by rows on all devices."""
    half = num // 2

    def assemble(model: Parting) -> Assembly:
        assembly, names = Assembly(), parameter_names(model)
        table = Vocabulary(name="token.weight", weight=model.token.weight)
        source = table.add_embedding(assembly, "embed", StageBlocks(forward="join", backward="part"))
        branches = ((model.a, range(half), 1, 1.0), (model.b, range(half, num), 2, SECOND_WEIGHT))
        for branch, devices, target, weight in branches:
            add_chain(
                assembly,
                Branch(target),
                Chain(
                    modules=list(branch),
                    first=even_stages(4, len(devices)),
                    blocks=_blocks(devices),
                    names=names,
                    prefix=f"branch{target}.",
                    source=source,
                    loss_weight=weight,
                    num_data=3,
                ),
            )
        return assembly

    return Placed(graph=k_shape(num), assemble=assemble)


def towers_placed(num: int) -> Placed:
    """`Towers`, joined on all devices by a block that goes forward and backward."""
    half = num // 2
    blocks: list[Block] = []
    for devices in (range(half), range(half, num)):
        for place, device in enumerate(devices):
            ahead = (f"f{devices[place - 1]}",) if place else ()
            behind = f"b{devices[place + 1]}" if place + 1 < len(devices) else "join"
            blocks.append(Block(name=f"f{device}", devices=(device,), seconds=1.0, memory=1.0, after=ahead))
            blocks.append(Block(name=f"b{device}", devices=(device,), seconds=3.0, memory=-1.0, after=(behind,)))
    ends = (f"f{half - 1}", f"f{num - 1}")
    blocks.append(Block(name="join", devices=tuple(range(num)), seconds=1.0, after=ends))
    graph = BlockGraph(num_devices=num, memory=(num + 2.0,) * num, blocks=tuple(blocks))

    def assemble(model: Towers) -> Assembly:
        assembly, names = Assembly(), parameter_names(model)
        for number, (tower, devices) in enumerate(((model.a, range(half)), (model.b, range(half, num)))):
            stages, first = _blocks(devices), even_stages(4, len(devices))
            ends = [*first, 4]
            for place, stage in enumerate(stages):
                module = nn.Sequential(*list(tower)[ends[place] : ends[place + 1]])
                source = () if place == 0 else (Source(part=f"t{number}.{place - 1}"),)
                part = Part(
                    name=f"t{number}.{place}",
                    forward=stage.forward,
                    backward=stage.backward,
                    inputs=source,
                    data=() if place else (number,),
                    parameters=tuple(names[id(p)] for p in module.parameters()),
                )
                assembly.add(part, lambda _shard, _num, module=module: module)
        last = f".{half - 1}"
        join = Part(
            name="join",
            forward="join",
            backward="join",
            inputs=(Source(part=f"t0{last}"), Source(part=f"t1{last}")),
            data=(2,),
            loss_weight=1.0,
            parameters=("head.weight",),
            has_own_rows=True,
        )
        weight = model.head.weight
        assembly.add(join, lambda k, n: Join(shard_of(weight, k, n), own_rows(CLASSES, k, n).start))
        return assembly

    return Placed(graph=graph, assemble=assemble)
