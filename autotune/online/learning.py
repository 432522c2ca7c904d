"""How the meta-network learns: from many simulated windows once, and from what was measured while training.

Both minimise the Laplace likelihood |y - value|/scale + log scale of each head: a plain difference instead of its square,
so that a few wild cases do not bend it. While training, a buffer keeps what was predicted and what was measured, and a few small
steps follow each new case; what was learned before holds the weights back (L2-SP, Li et al. 2018), so that a handful of
cases moves the guess for their kind and leaves the rest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autotune.online.features import Singles
from autotune.online.meta_network import STATE, MetaNetwork, checked

BUFFER_CASES = 256
_STEPS, _RATE, _HOLD = 20, 1e-3, 1e-2
"""Of fine-tuning: steps after each case, their size, and how much the weights are held back."""
_CASES_A_STEP = 32
_LEAST_INPUT_SCALE = 0.05
"""A number that hardly changed in training must not become huge when it does."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """A candidate that was predicted in one window and measured in a later one."""

    window: Singles
    row: Singles
    predicted: float
    measured: float
    """log(throughput / throughput of the plan that ran before)."""


class Memory:
    """The last cases, and the network that learns from them."""

    def __init__(self, network: MetaNetwork, *, seed: int = 0, num_learned: int = 0) -> None:
        self.network = network.copy()
        self.seed, self.num_learned = seed, num_learned
        """How many cases were learned from, ever."""
        self.cases: deque[Case] = deque(maxlen=BUFFER_CASES)

    def learn(self, case: Case) -> None:
        """Keep a case and take a few small steps on the cases kept: the same ones for the same seed and history."""
        self.cases.append(case)
        self.num_learned += 1
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.num_learned)
        batch = Batch.of(list(self.cases))
        draws = (
            torch.randint(len(batch.measured), (min(_CASES_A_STEP, len(batch.measured)),), generator=generator)
            for _ in range(_STEPS)
        )
        descend(self.network, ((batch.rows_at(chosen), _RATE) for chosen in draws), hold=_HOLD)

    def error(self) -> float:
        """Mean of |predicted - measured| over the cases kept."""
        return float(np.mean([abs(case.predicted - case.measured) for case in self.cases])) if self.cases else 0.0

    def to_bytes(self) -> bytes:
        """Network and cases as safetensors, for whoever keeps them."""
        extra = {"seed": torch.tensor([self.seed, self.num_learned])}
        if self.cases:
            batch = Batch.of(list(self.cases))
            predicted = torch.tensor([case.predicted for case in self.cases], dtype=torch.float64)
            measured = torch.tensor([case.measured for case in self.cases], dtype=torch.float64)
            extra |= {"cases_window": batch.windows, "cases_row": batch.rows}
            extra |= {"cases_predicted": predicted, "cases_measured": measured}
        return self.network.to_bytes(extra)

    @classmethod
    def of_bytes(cls, content: bytes, where: str) -> Memory:
        """From what `to_bytes` made; weights alone will do."""
        tensors = checked(content, where)
        seed, num_learned = tensors.get("seed", torch.zeros(2, dtype=torch.int64)).tolist()
        memory = cls(MetaNetwork.of_bytes(content, where), seed=seed, num_learned=num_learned)
        if "cases_row" in tensors:
            columns = [tensors[f"cases_{name}"] for name in ("window", "row", "predicted", "measured")]
            memory.cases.extend(
                Case(window=window.numpy(), row=row.numpy(), predicted=float(predicted), measured=float(measured))
                for window, row, predicted, measured in zip(*columns, strict=True)
            )
        return memory


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Cases as tensors, one row each."""

    windows: Tensor
    rows: Tensor
    measured: Tensor
    weights: Tensor | None = None
    """Of each head for each case: heads that learn from different draws disagree where there is little to learn from."""

    @classmethod
    def of(cls, cases: list[Case]) -> Batch:
        return cls(
            windows=torch.from_numpy(np.stack([case.window for case in cases])),
            rows=torch.from_numpy(np.stack([case.row for case in cases])),
            measured=torch.tensor([case.measured for case in cases], dtype=torch.float32),
        )

    def rows_at(self, chosen: Tensor) -> Batch:
        return Batch(
            windows=self.windows[chosen],
            rows=self.rows[chosen],
            measured=self.measured[chosen],
            weights=self.weights[:, chosen] if self.weights is not None else None,
        )


def descend(network: MetaNetwork, steps: Iterable[tuple[Batch, float]], *, hold: float = 0.0) -> None:
    """A step of Adam on each batch at its rate, in place. `hold`: the pull back to where the weights were."""
    learned = [tensor for name, tensor in network.tensors.items() if name not in STATE]
    before = [tensor.clone() for tensor in learned]
    for tensor in learned:
        tensor.requires_grad_(True)
    optimizer = torch.optim.Adam(learned)
    for batch, rate in steps:
        optimizer.param_groups[0]["lr"] = rate
        loss = misfit(network, batch)
        if hold:
            loss = loss + hold * torch.stack([((a - b) ** 2).sum() for a, b in zip(learned, before, strict=True)]).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    for tensor in learned:
        tensor.requires_grad_(False)


def misfit(network: MetaNetwork, batch: Batch) -> Tensor:
    """Mean over heads and cases of the Laplace likelihood's negative logarithm."""
    value, log_scale = network.forward(batch.windows, batch.rows)
    each = (batch.measured - value).abs() * (-log_scale).exp() + log_scale
    return (each * batch.weights).mean() if batch.weights is not None else each.mean()


def pretrain(data: Batch, *, seed: int, epochs: int, batch_size: int = 1024, rate: float = 2e-3) -> MetaNetwork:
    """A network from many cases: numbers brought to one scale, then epochs at a rate that falls to nothing."""
    network = MetaNetwork.cold(seed)
    for name, values in (("window", data.windows), ("row", data.rows)):
        network.tensors[f"{name}_mean"] = values.mean(dim=0)
        network.tensors[f"{name}_scale"] = values.std(dim=0).clamp(min=_LEAST_INPUT_SCALE)
    generator = torch.Generator().manual_seed(seed)
    total = epochs * -(-len(data.measured) // batch_size)

    def batches() -> Iterator[Batch]:
        for _ in range(epochs):
            order = torch.randperm(len(data.measured), generator=generator)
            yield from (data.rows_at(chosen) for chosen in order.split(batch_size))

    falling = (rate * (1 + math.cos(math.pi * step / total)) / 2 for step in range(total))
    descend(network, zip(batches(), falling, strict=True))
    return network
