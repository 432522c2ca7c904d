"""Click prediction by DLRM: 26 embedding tables, a tower for dense features, pairwise dot products, a tower on top.

Cardinalities and bag sizes are those of MLPerf's DLRM v2 (Criteo, multi-hot), each size of ours divided by the factor that
its row states. Ids follow a Zipf distribution; a bag that may hold several ids holds any number of them down to none, and
may hold an id twice. Clicks depend on a hidden score of every row, so that there is something to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Optimizer
from torch.utils.data import TensorDataset

from autotune.workloads.models.base import DATA_SEED, DTYPES, batch_or_default, chosen
from autotune.workloads.models.row_wise_adagrad import RowWiseAdagrad

NUM_DENSE = 13
CARDINALITIES = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
BAG_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
FEWEST_ROWS = 3
ZIPF = 1.05
NO_ID = -1
"""Fills the slots of a bag that holds fewer ids."""
_LAST_STD = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class DlrmSize:
    """One row of the table of sizes."""

    rows_divisor: int
    """Of the cardinalities; no table has fewer than FEWEST_ROWS rows."""
    bag_divisor: int
    """Of the bag sizes, rounded up."""
    width: int
    """Of all tables."""
    bottom: tuple[int, ...]
    """Widths of the hidden layers of the tower for dense features."""
    top: tuple[int, ...]
    num_samples: int = 1024
    global_batch: int = 64

    @property
    def num_rows(self) -> tuple[int, ...]:
        return tuple(max(math.ceil(rows / self.rows_divisor), FEWEST_ROWS) for rows in CARDINALITIES)

    @property
    def slots(self) -> tuple[int, ...]:
        """The most ids of a bag, per table."""
        return tuple(math.ceil(size / self.bag_divisor) for size in BAG_SIZES)


SIZES = {
    "tiny": DlrmSize(rows_divisor=200_000, bag_divisor=10, width=8, bottom=(16,), top=(16,)),
    "small": DlrmSize(rows_divisor=2_000, bag_divisor=4, width=16, bottom=(64, 32), top=(64, 32), num_samples=4096),
    "large": DlrmSize(
        rows_divisor=100,
        bag_divisor=1,
        width=64,
        bottom=(512, 256),
        top=(512, 512, 256),
        num_samples=16_384,
        global_batch=2048,
    ),
}


class Dlrm(nn.Module):
    """Logits of a click for (dense features, ids)."""

    def __init__(self, size: DlrmSize) -> None:
        super().__init__()
        self.slots = size.slots
        self.bottom = tower((NUM_DENSE, *size.bottom, size.width))
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, size.width, mode="sum") for rows in size.num_rows)
        vectors = len(self.tables) + 1
        self.top = tower((vectors * (vectors - 1) // 2 + size.width, *size.top, 1))
        for table in self.tables:
            weight = table.get_parameter("weight")
            nn.init.uniform_(weight, -1 / math.sqrt(len(weight)), 1 / math.sqrt(len(weight)))
        nn.init.normal_(self.top[-1].get_parameter("weight"), std=_LAST_STD)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        below = self.bottom(dense).relu()
        pooled = [table(*bag) for table, bag in zip(self.tables, bags(ids, self.slots), strict=True)]
        vectors = torch.stack([below, *pooled], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        one, other = torch.tril_indices(len(pooled) + 1, len(pooled) + 1, -1, device=ids.device)
        logits: Tensor = self.top(torch.cat([below, products[:, one, other]], dim=1))
        return logits.squeeze(1)


def tower(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def bags(ids: Tensor, slots: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """What each `nn.EmbeddingBag` is called with: the ids of all samples, and where each sample's begin."""
    for own in ids.split(list(slots), dim=1):
        held = own != NO_ID
        counts = held.sum(1)
        yield own[held], counts.cumsum(0) - counts


@dataclass(frozen=True, kw_only=True, slots=True)
class DlrmWorkload:
    """Predict clicks from (dense features, ids, clicked)."""

    name: str
    size: DlrmSize
    global_batch: int
    build_optimizer: Callable[[nn.Module], Optimizer]
    dtype: torch.dtype = torch.float32
    min_samples: int = 1

    def model(self) -> nn.Module:
        """A freshly initialised model; the caller seeds torch first."""
        return Dlrm(self.size).to(self.dtype)

    def dataset(self) -> TensorDataset:
        """The training samples, the same at every call. Leaves torch's global generator alone."""
        dense, ids, clicked = click_data(self.size, max(self.size.num_samples, self.global_batch))
        return TensorDataset(dense.to(self.dtype), ids, clicked)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Binary cross entropy, the mean over samples."""
        dense, ids, clicked = batch
        logits: Tensor = model(dense, ids)
        return functional.binary_cross_entropy_with_logits(logits, clicked.to(logits.dtype))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Of the towers and of the tables."""
        return self.build_optimizer(model)

    def lookups(self, batch: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """What each table of the model is called with, by the name of its module."""
        return {f"tables.{number}": bag for number, bag in enumerate(bags(batch[1], self.size.slots))}


def click_data(size: DlrmSize, num_samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dense features, ids of all tables side by side with NO_ID in empty slots, and whether each sample was clicked."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    dense = torch.randn(num_samples, NUM_DENSE, generator=generator)
    score = dense @ torch.randn(NUM_DENSE, generator=generator) / math.sqrt(NUM_DENSE)
    columns = []
    for rows, slots in zip(size.num_rows, size.slots, strict=True):
        own = zipf_ids(rows, (num_samples, slots), generator)
        if slots > 1:
            held = torch.randint(slots + 1, (num_samples, 1), generator=generator)
            own[torch.arange(slots) >= held] = NO_ID
        hidden = torch.cat([torch.randn(rows, generator=generator), torch.zeros(1)])  # the last: of NO_ID
        score += hidden[own].sum(1) / math.sqrt(slots * len(size.num_rows))
        columns.append(own)
    return dense, torch.cat(columns, dim=1), (score > score.median()).long()


def zipf_ids(num_rows: int, shape: tuple[int, ...], generator: torch.Generator, exponent: float = ZIPF) -> Tensor:
    """Ids with probabilities as their rank to the power of -exponent; which ids are frequent is drawn as well."""
    weights = torch.arange(1, num_rows + 1, dtype=torch.float64) ** -exponent
    ends = weights.cumsum(0) / weights.sum()
    ranks = torch.searchsorted(ends, torch.rand(shape, generator=generator, dtype=torch.float64)).clamp(
        max=num_rows - 1
    )
    return torch.randperm(num_rows, generator=generator)[ranks]


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "row-wise-adagrad": RowWiseAdagrad,
}


def _optimizer(model: nn.Module, *, kind: Callable[..., Optimizer], lr: float) -> Optimizer:
    return kind(model.parameters(), lr=lr)


def workload(
    *, size: str = "small", global_batch: int = 0, optimizer: str = "adagrad", lr: float = 0.02, dtype: str = "float32"
) -> DlrmWorkload:
    """DLRM on synthetic clicks. `global_batch` 0 is the size's own."""
    row = chosen("size", size, SIZES)
    return DlrmWorkload(
        name=f"dlrm-{size}",
        size=row,
        global_batch=batch_or_default(global_batch, row.global_batch),
        build_optimizer=partial(_optimizer, kind=chosen("optimizer", optimizer, OPTIMIZERS), lr=lr),
        dtype=chosen("dtype", dtype, DTYPES),
    )
