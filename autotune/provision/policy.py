"""A policy learned for one problem: an LSTM over the layers that draws a type for each, trained by REINFORCE with a moving baseline.

After Paddle-HeterPS (arXiv 2111.10635). Input per layer: its place, kind, sizes of input and weights, compute and transfer times on each type, and
what each type would cost for it; and, unlike there, the type drawn for the layer before, so that runs can be learned. The reward is −log(cost), less
the moving mean of earlier batches; a bonus for entropy that fades keeps the policy from deciding too early. The answer is the cheapest assignment
drawn, not the policy's last word.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autotune.provision.judge import Asked, Chosen, Judge
from autotune.provision.problem import Problem

_HIDDEN = 48
_BATCH, _UPDATES = 48, 200
_RATE, _ENTROPY, _BASELINE = 0.02, 0.05, 0.9
_STALE = 60
"""Updates without a better assignment, after which it ends."""


class Policy(nn.Module):
    """Types of layers, one after another."""

    def __init__(self, num_features: int, num_types: int) -> None:
        super().__init__()
        self.num_types = num_types
        self.cell = nn.LSTMCell(num_features + num_types, _HIDDEN)
        self.head = nn.Linear(_HIDDEN, num_types)

    def draw(self, features: Tensor, allowed: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """`count` assignments, the log of their probabilities, and the mean entropy of the choices."""
        state: Any = None
        before = torch.zeros(count, self.num_types)
        drawn, log_probability, entropy = [], torch.zeros(count), torch.zeros(())
        for layer, possible in zip(features, allowed, strict=True):
            state = self.cell(torch.cat([layer.expand(count, -1), before], dim=1), state)
            logits = self.head(state[0]).masked_fill(~possible, -1e9)
            log_p = torch.log_softmax(logits, dim=1)
            kinds = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
            log_probability = log_probability + log_p.gather(1, kinds).squeeze(1)
            entropy = entropy - (log_p.exp() * log_p).sum(dim=1).mean()
            before = nn.functional.one_hot(kinds.squeeze(1), self.num_types).to(before.dtype)
            drawn.append(kinds)
        return torch.cat(drawn, dim=1), log_probability, entropy / len(features)


def learned(asked: Asked) -> Chosen:
    """As `--method rl`."""
    problem, judge = asked.problem, Judge(asked.problem)
    features, allowed = features_of(problem), torch.from_numpy(np.isfinite(problem.tables.compute_s))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(asked.seed)
        policy = Policy(features.shape[1], len(problem.types))
    generator = torch.Generator().manual_seed(asked.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=_RATE)
    until, stale, least, baseline, spread = time.perf_counter() + asked.time_s, 0, math.inf, 0.0, 1.0
    for update in range(_UPDATES):
        drawn, log_probability, entropy = policy.draw(features, allowed, _BATCH, generator)
        reward = torch.tensor([-math.log(max(judge(row), 1e-300)) for row in drawn.numpy()], dtype=torch.float32)
        keep = _BASELINE if update else 0.0
        baseline = keep * baseline + (1 - keep) * float(reward.mean())
        spread = keep * spread + (1 - keep) * float(reward.std())
        advantage = ((reward - baseline) / max(spread, 1e-6)).clamp(-5, 5)
        bonus = _ENTROPY * (1 - update / _UPDATES)
        optimizer.zero_grad()
        (-(advantage * log_probability).mean() - bonus * entropy).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        stale = 0 if judge.least < least * (1 - 1e-9) else stale + 1
        least = judge.least
        if stale > _STALE or time.perf_counter() > until:
            break
    return judge.answer()


def features_of(problem: Problem) -> Tensor:
    """Of each layer; times and costs as logs, relative to the mean layer."""
    tables = problem.tables
    compute = np.where(np.isfinite(tables.compute_s), tables.compute_s, 0.0)
    transfer = np.where(np.isfinite(tables.transfer_s), tables.transfer_s, 0.0)
    costs = tables.price * np.maximum(compute, transfer)
    place = np.linspace(0, 1, problem.num_layers)[:, None]
    kinds = sorted({layer.kind for layer in problem.layers})
    kind = np.array([[float(layer.kind == one) for one in kinds] for layer in problem.layers])
    sizes = np.array([[layer.input_bytes, layer.weight_bytes] for layer in problem.layers])
    columns = [place, np.cos(math.pi * place), kind, *map(_relative, (sizes, compute, transfer, costs))]
    return torch.from_numpy(np.concatenate(columns, axis=1)).to(torch.float32)


def _relative(values: Any) -> Any:
    mean = values.mean()
    return np.log1p(values / mean) if mean > 0 else values
