"""Random problems, and the optimum of small ones by trying everything."""

from __future__ import annotations

import math
import random
from functools import cache

from autotune.workloads.blocks import Block, BlockGraph


def random_chain(seed, *, devices=(4, 8), whole=False, split=False):
    """A training chain on unequal devices, with links and limits that leave room for some micro-batches."""
    draw = random.Random(seed)
    num = draw.randint(*devices)
    amount = (lambda low, high: float(draw.randint(math.ceil(low * 4), math.ceil(high * 4)))) if whole else draw.uniform
    held = [amount(0.5, 2.0) for _ in range(num)]
    blocks, after = [], ()
    for device in range(num):
        blocks.append(
            Block(name=f"f{device}", devices=(device,), seconds=amount(0.5, 2.0), memory=held[device], after=after)
        )
        after = (f"f{device}",)
    for device in reversed(range(num)):
        parts = (amount(0.5, 2.0), amount(0.5, 2.0))
        blocks.append(
            Block(
                name=f"b{device}",
                devices=(device,),
                seconds=sum(parts),
                memory=-held[device],
                after=after,
                split=parts if split and draw.random() < 0.8 else None,
            )
        )
        after = (f"b{device}",)
    memory = tuple(held[device] * draw.randint(1, num) + amount(0.0, 0.5) for device in range(num))
    link_s = tuple(tuple(amount(0.0, 0.5) if a != b else 0.0 for b in range(num)) for a in range(num))
    return BlockGraph(num_devices=num, memory=memory, blocks=tuple(blocks), link_s=link_s)


def random_dag(seed, *, devices=(2, 3), blocks=(2, 3), split=False):
    """Any graph, with blocks on several devices; what a block takes another gives back."""
    draw = random.Random(seed)
    num = draw.randint(*devices)
    made = []

    def some_before():
        return tuple(sorted(draw.sample([block.name for block in made], min(len(made), draw.randint(0, 2)))))

    for index in range(draw.randint(*blocks)):
        on = tuple(sorted(draw.sample(range(num), 2 if draw.random() < 0.2 else 1)))
        memory = float(draw.randint(0, 2))
        seconds = float(draw.randint(1, 4))
        made.append(Block(name=f"n{index}", devices=on, seconds=seconds, memory=memory, after=some_before()))
    for block in [block for block in made if block.memory]:
        parts = (float(draw.randint(1, 2)), float(draw.randint(1, 2)))
        made.append(
            Block(
                name=f"x{block.name}",
                devices=block.devices,
                seconds=sum(parts),
                memory=-block.memory,
                after=tuple(sorted({*some_before(), block.name})),
                split=parts if split else None,
            )
        )
    limits = tuple(
        float(sum(max(b.memory, 0.0) for b in made if device in b.devices) + draw.randint(0, 3))
        for device in range(num)
    )
    link_s = tuple(tuple(float(draw.randint(0, 2)) if a != b else 0.0 for b in range(num)) for a in range(num))
    return BlockGraph(num_devices=num, memory=limits, blocks=tuple(made), link_s=link_s if draw.random() < 0.5 else ())


def least_makespan(graph, num_microbatches):
    """Every order in which steps can be appended to the devices, each as early as possible: the optimum is among them.

    Infinite if memory allows none.
    """
    blocks = graph.blocks
    delay = {(b.name, a): graph.delay_s(next(x for x in blocks if x.name == a), b) for b in blocks for a in b.after}

    @cache
    def best(done, free, ends, held):
        """`done`: micro-batches begun per block; `ends`: of each, as micro-batches of a block run in order."""
        if all(count == num_microbatches for count in done):
            return max(free)
        least = math.inf
        for index, block in enumerate(blocks):
            microbatch = done[index]
            if microbatch == num_microbatches:
                continue
            names = {b.name: i for i, b in enumerate(blocks)}
            if any(done[names[a]] <= microbatch for a in block.after):
                continue
            level = [h + block.memory if d in block.devices else h for d, h in enumerate(held)]
            if any(block.memory > 0 and level[d] > graph.memory[d] for d in block.devices):
                continue
            start = max(free[d] for d in block.devices)
            for a in block.after:
                start = max(start, ends[names[a]][microbatch] + delay[block.name, a])
            end = start + block.seconds
            moved = tuple(end if d in block.devices else f for d, f in enumerate(free))
            ended = tuple((*e, end) if i == index else e for i, e in enumerate(ends))
            counts = tuple(c + 1 if i == index else c for i, c in enumerate(done))
            least = min(least, best(counts, moved, ended, tuple(level)))
        return least

    num = len(blocks)
    return best((0,) * num, (0.0,) * graph.num_devices, ((),) * num, (0.0,) * graph.num_devices)
