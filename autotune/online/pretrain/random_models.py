"""Random models for pre-training: captured models of the shipped workloads, widened and rescaled, and synthetic ones.

A family of captured models and a kind of synthetic ones are held out from training.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache

import torch

from autotune.runtime.data.batches import batches_of
from autotune.workloads.capture import COUNTED, capture
from autotune.workloads.graph import Op, OpGraph, Parameter
from autotune.workloads.registry import load_workload

TRAINED_MODELS = ("mlp-small", "mlp-large", "vgg-tiny", "vgg-small", "gpt-tiny", "gpt-small", "growing", "even")
HELD_OUT_MODELS = ("resnet-tiny", "resnet-small", "waves")
_SYNTHETIC = ("growing", "even", "waves")
_MOST_MODEL_BYTES = 2e9


def seeded(text: str) -> random.Random:
    """The generator of one purpose and seed."""
    return random.Random(text)  # noqa: S311 - not for cryptography


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def draw_model(draw: random.Random, *, held_out: bool) -> OpGraph:
    """A random model, of those to train on or of those held out."""
    name = draw.choice(HELD_OUT_MODELS if held_out else TRAINED_MODELS)
    if name in _SYNTHETIC:
        return _synthetic(draw, name)
    graph = _captured(name)
    most = max(min(_MOST_MODEL_BYTES / graph.param_bytes, 64), 1)
    return _widened(graph, round(log_uniform(draw, 1, most)), log_uniform(draw, 0.25, 4))


@cache
def _captured(name: str) -> OpGraph:
    """The costs of a workload's model, without sufficient factors."""
    workload = load_workload(name)
    torch.manual_seed(0)
    model = workload.model()
    batches = batches_of(workload, (workload.global_batch,), 0, seed=0)
    fetched = {count: batches.fetch(torch.arange(count)) for count in COUNTED}
    graph = capture(model, lambda count: workload.loss(model, fetched[count]))
    return replace(graph, ops=tuple(replace(op, factor_shapes=()) for op in graph.ops))


def _widened(graph: OpGraph, times: int, work: float) -> OpGraph:
    """Every tensor `times` as large; the work of ops grows in proportion, and by the factor `work`."""
    parameters = tuple(
        replace(entry, num_bytes=entry.num_bytes * times, shape=(entry.shape[0] * times, *entry.shape[1:]))
        if entry.shape
        else replace(entry, num_bytes=entry.num_bytes * times)
        for entry in graph.parameters
    )
    ops = tuple(
        replace(
            op,
            param_bytes=op.param_bytes * times,
            flops_per_sample=op.flops_per_sample * (times * work if op.param_bytes else work),
            bytes_per_sample=op.bytes_per_sample * work,
        )
        for op in graph.ops
    )
    return replace(graph, ops=ops, parameters=parameters)


def _synthetic(draw: random.Random, kind: str) -> OpGraph:
    """Layers with growing parameters and shrinking arithmetic (classifiers), equal layers, or a wave of sizes."""
    num_ops, weight = draw.randint(3, 60), log_uniform(draw, 3e4, 3e6)
    slope, period = draw.uniform(0, 6), draw.uniform(2, 12)
    ops, parameters = [], []
    for index in range(num_ops):
        place = index / num_ops
        shape = {"growing": slope * place, "even": 0.0, "waves": slope * math.sin(index / period) / 2}[kind]
        rows = max(round(weight * math.exp(shape + draw.gauss(0, 0.3)) / 256), 1)
        name = f"layer{index}"
        tensors: list[tuple[int, ...]] = [(rows, 64)]
        tensors += [(rows,)] * (draw.random() < 0.7) + [(64,)] * (draw.random() < 0.3)
        sizes = [4 * math.prod(tensor) for tensor in tensors]
        parameters += [
            Parameter(name=f"{name}.{number}", op=name, num_bytes=size, shape=tensor)
            for number, (size, tensor) in enumerate(zip(sizes, tensors, strict=True))
        ]
        ops.append(
            Op(
                name=name,
                kind="Linear",
                num_calls=1,
                flops_per_sample=1e7 * math.exp(draw.uniform(-1, 1) - draw.uniform(0, 1) * shape),
                fixed_bytes=float(sum(sizes)),
                bytes_per_sample=1e4,
                param_bytes=sum(sizes),
                backward_factor=1.0 if index == 0 else 2.0,
            )
        )
    return OpGraph(ops=tuple(ops), saved_bytes_per_sample=0.0, parameters=tuple(parameters))
