"""A policy learned for one problem: an LSTM over the layers that draws a type for each, trained by REINFORCE with a moving baseline.

After Paddle-HeterPS (arXiv 2111.10635). Input per layer: its place, kind, sizes of input and weights, compute and transfer times on each type, and
what each type would cost for it. Differently from there, the policy also sees the layers that follow, by a second LSTM that reads them in reverse,
and the type drawn for the layer before, with a learned inclination to stay on it: costs are of runs of layers. The reward is −log(cost) less the
moving mean of earlier batches; a bonus for entropy that fades keeps the policy from deciding too early. Every batch holds the best assignment of
its policy so far. Several policies are trained from different starts. The answer is the cheapest assignment drawn, not a policy's last word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autotune.provision.judge import Asked, Chosen, Judge
from autotune.provision.problem import Floats, Problem

_HIDDEN = 48
_BATCH, _UPDATES = 64, 200
_RATE, _ENTROPY, _BASELINE = 0.01, 0.05, 0.9
_STALE = 30
"""Updates without a better assignment, after which a policy ends."""
_STARTS = ((1.5, 0.5), (0.5, 0.5), (3.0, 0.0), (1.0, 1.0))
"""Of each policy: how much it is inclined to stay on a type, and to take the type that costs a layer least."""


class Policy(nn.Module):
    """Types of layers, one after another."""

    def __init__(self, num_features: int, num_types: int, start: tuple[float, float]) -> None:
        super().__init__()
        self.num_types = num_types
        self.ahead = nn.LSTM(num_features, _HIDDEN)
        self.cell = nn.LSTMCell(num_features + _HIDDEN + num_types, _HIDDEN)
        self.head = nn.Linear(_HIDDEN, num_types)
        self.stay, self.frugal = (nn.Parameter(torch.tensor(value)) for value in start)

    def draw(
        self, layers: Layers, count: int, generator: torch.Generator, best: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`count` assignments, `best` as the first of them; the log of their probabilities; the mean entropy of the choices."""
        state: Any = None
        before = torch.zeros(count, self.num_types)
        drawn, log_probability, entropy = [], torch.zeros(count), torch.zeros(())
        ahead = self.ahead(layers.features.flip(0).unsqueeze(1))[0].squeeze(1).flip(0)
        inputs = torch.cat([layers.features, ahead], dim=1)
        for place, known in enumerate(inputs):
            state = self.cell(torch.cat([known.expand(count, -1), before], dim=1), state)
            logits = self.head(state[0]) + self.stay * before - self.frugal * layers.costs[place]
            log_p = torch.log_softmax(logits.masked_fill(~layers.allowed[place], -1e9), dim=1)
            kinds = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
            if best is not None:
                kinds[0] = best[place]
            log_probability = log_probability + log_p.gather(1, kinds).squeeze(1)
            entropy = entropy - (log_p.exp() * log_p).sum(dim=1).mean()
            before = nn.functional.one_hot(kinds.squeeze(1), self.num_types).to(before.dtype)
            drawn.append(kinds)
        return torch.cat(drawn, dim=1), log_probability, entropy / len(inputs)


class Layers:
    """What the policy sees of each layer: times and costs as logs, relative to the mean layer."""

    def __init__(self, problem: Problem) -> None:
        tables = problem.tables
        self.allowed = torch.from_numpy(np.isfinite(tables.compute_s))
        compute = np.where(np.isfinite(tables.compute_s), tables.compute_s, 0.0)
        transfer = np.where(np.isfinite(tables.transfer_s), tables.transfer_s, 0.0)
        costs = tables.price * np.maximum(compute, transfer)
        self.costs = _tensor(np.log(np.maximum(costs, 1e-30) / np.maximum(costs.mean(axis=1, keepdims=True), 1e-30)))
        place = np.linspace(0, 1, problem.num_layers)[:, None]
        kinds = sorted({layer.kind for layer in problem.layers})
        kind = np.array([[float(layer.kind == one) for one in kinds] for layer in problem.layers])
        sizes = np.array([[layer.input_bytes, layer.weight_bytes] for layer in problem.layers])
        columns = [place, np.cos(math.pi * place), kind, *map(_relative, (sizes, compute, transfer, costs))]
        self.features = _tensor(np.concatenate(columns, axis=1))


def learned(asked: Asked) -> Chosen:
    """As `--method rl`."""
    judge, until = Judge(asked.problem), time.perf_counter() + asked.time_s
    with _one_thread():
        for place, start in enumerate(_STARTS):
            seed = asked.seed * len(_STARTS) + place
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                layers = Layers(asked.problem)
                policy = Policy(layers.features.shape[1], len(asked.problem.types), start)
            _train(policy, layers, judge, torch.Generator().manual_seed(seed), until)
    return judge.answer()


def _train(policy: Policy, layers: Layers, judge: Judge, generator: torch.Generator, until: float) -> None:
    optimizer = torch.optim.Adam(policy.parameters(), lr=_RATE)
    stale, least, baseline, spread = 0, math.inf, 0.0, 1.0
    best: Tensor | None = None
    for update in range(_UPDATES):
        drawn, log_probability, entropy = policy.draw(layers, _BATCH, generator, best)
        values = np.array([judge(row) for row in drawn.numpy()])
        stale += 1
        if values.min() < least:
            stale, least, best = 0, float(values.min()), drawn[int(values.argmin())].clone()
        reward = _rewards(values, judge)
        keep = _BASELINE if update else 0.0
        baseline = keep * baseline + (1 - keep) * float(reward.mean())
        spread = keep * spread + (1 - keep) * float(reward.std())
        advantage = ((reward - baseline) / max(spread, 1e-6)).clamp(-1, 3)
        optimizer.zero_grad()
        (-(advantage * log_probability).mean() - _ENTROPY * (1 - update / _UPDATES) * entropy).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if stale > _STALE or time.perf_counter() > until:
            return


def _rewards(values: Floats, judge: Judge) -> Tensor:
    """−log(cost); assignments that miss the floor or limits a little below the worst that does not, by how far they are off."""
    logs = np.log(np.maximum(values, 1e-300))
    unfit = values >= judge.unfit
    if unfit.any() and not unfit.all():
        logs[unfit] = logs[~unfit].max() + 0.5 + 0.1 * (logs[unfit] - logs[unfit].min())
    return _tensor(-logs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The matrices are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _relative(values: Floats) -> Floats:
    mean = values.mean()
    relative: Floats = np.log1p(values / mean) if mean > 0 else values
    return relative


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(values).to(torch.float32)
