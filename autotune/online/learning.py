"""Training of the meta-network: once on many simulated windows, and then on the cases measured in a training run.

Both minimise the negative log likelihood of a Laplace distribution, |y - value|/scale + log scale, of each head; it is
robust to outliers. In a training run a buffer keeps the predicted and measured gains, and a few optimizer steps follow
each new case. An L2 penalty on the distance to the previous weights (L2-SP, Li et al. 2018) limits the change, so that a
few cases do not change predictions for other inputs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autotune.online.features import Float32s
from autotune.online.meta_network import STATE, MetaNetwork, checked

BUFFER_CASES = 256
_STEPS, _RATE, _PENALTY = 20, 1e-3, 1e-2
"""Of fine-tuning: optimizer steps per case, learning rate, and weight of the L2-SP penalty."""
_BATCH_CASES = 32
_LEAST_INPUT_SCALE = 0.05
"""Lower limit of a feature's standard deviation: a feature that was nearly constant must not be scaled to huge values."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """A candidate with the gain predicted in one window and the gain measured in a later one."""

    window: Float32s
    row: Float32s
    predicted: float
    measured: float
    """log(throughput / throughput of the previous plan)."""


class Memory:
    """The last cases, and the network that is fine-tuned on them."""

    def __init__(self, network: MetaNetwork, *, seed: int = 0, num_learned: int = 0) -> None:
        self.network = network.copy()
        self.seed, self.num_learned = seed, num_learned
        """Cases learned from so far, including those that the buffer dropped."""
        self.cases: deque[Case] = deque(maxlen=BUFFER_CASES)

    def learn(self, case: Case) -> None:
        """Add a case and fine-tune on the buffer. Deterministic for a seed and a sequence of cases."""
        self.cases.append(case)
        self.num_learned += 1
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.num_learned)
        batch = Batch.of(list(self.cases))
        draws = (
            torch.randint(len(batch.measured), (min(_BATCH_CASES, len(batch.measured)),), generator=generator)
            for _ in range(_STEPS)
        )
        descend(self.network, ((batch.rows_at(chosen), _RATE) for chosen in draws), penalty=_PENALTY)

    def error(self) -> float:
        """Mean of |predicted - measured| over the buffer."""
        return float(np.mean([abs(case.predicted - case.measured) for case in self.cases])) if self.cases else 0.0

    def to_bytes(self) -> bytes:
        """Network and cases as safetensors."""
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
        """Read the output of `to_bytes`, or of `MetaNetwork.to_bytes`."""
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
    """Cases as tensors, one row per case."""

    windows: Tensor
    rows: Tensor
    measured: Tensor
    weights: Tensor | None = None
    """Bootstrap weight of each case for each head: the heads disagree where data is sparse."""

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


def descend(network: MetaNetwork, steps: Iterable[tuple[Batch, float]], *, penalty: float = 0.0) -> None:
    """One step of Adam per batch at its learning rate, in place. `penalty`: weight of the distance to the initial weights."""
    learned = [tensor for name, tensor in network.tensors.items() if name not in STATE]
    before = [tensor.clone() for tensor in learned]
    for tensor in learned:
        tensor.requires_grad_(True)
    optimizer = torch.optim.Adam(learned)
    for batch, rate in steps:
        optimizer.param_groups[0]["lr"] = rate
        loss = misfit(network, batch)
        if penalty:
            distances = [((a - b) ** 2).sum() for a, b in zip(learned, before, strict=True)]
            loss = loss + penalty * torch.stack(distances).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    for tensor in learned:
        tensor.requires_grad_(False)


def misfit(network: MetaNetwork, batch: Batch) -> Tensor:
    """Negative log likelihood of the Laplace distribution, mean over heads and cases."""
    value, log_scale = network.forward(batch.windows, batch.rows)
    each = (batch.measured - value).abs() * (-log_scale).exp() + log_scale
    return (each * batch.weights).mean() if batch.weights is not None else each.mean()


def pretrain(data: Batch, *, seed: int, epochs: int, batch_size: int = 1024, rate: float = 2e-3) -> MetaNetwork:
    """Train a network on many cases: normalized features, a cosine learning rate that decays to 0."""
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

    decaying = (rate * (1 + math.cos(math.pi * step / total)) / 2 for step in range(total))
    descend(network, zip(batches(), decaying, strict=True))
    return network
