"""A trainer on texts of unequal length: dealt by tokens, weighted by tokens, read ahead, with splits that change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.gloo_ranks import on_ranks, rank_network

PADDING = -1


class Texts(Dataset[Tensor]):
    """Texts of 2 to 9 tokens."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(2, 10, (21,), generator=generator)
        self._texts = [torch.randint(0, 12, (int(length),), generator=generator) for length in self.lengths]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Tensor:
        return self._texts[index]


class Ragged:
    """Guess each token from itself; the loss is the mean over tokens, padding left out."""

    name, global_batch, min_samples = "ragged", 8, 1
    num_workers = accumulate = 1

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 5), nn.Linear(5, 12)).double()

    def dataset(self) -> Texts:
        return Texts()

    def work(self, dataset: Texts) -> list[float]:
        return [float(length) ** 2 for length in dataset.lengths]

    def loss_weights(self, dataset: Texts) -> Tensor:
        return dataset.lengths

    def collate(self, samples: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=PADDING)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch.clamp(min=0))
        return functional.cross_entropy(logits.flatten(0, 1), batch.flatten(), ignore_index=PADDING)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def rank_context(rank: int) -> RankContext:
    return RankContext(
        rank=rank,
        device=load_cluster("this-machine").devices[0],
        torch_device=torch.device("cpu"),
        network=rank_network(),
    )


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("comm", [CommPlan(), CommPlan(reducer="scheduled", partition_bytes=256, crosses_steps=True)])
def test_a_mean_over_tokens_is_that_of_one_process_for_every_split(
    comm: CommPlan, accumulate: int, num_workers: int
) -> None:
    workload = Ragged()
    workload.accumulate, workload.num_workers = accumulate, num_workers

    def run(group: dist.ProcessGroup) -> Any:
        plan = Plan(batch=BatchPlan(samples=(5, 1, 2)), comm=comm)
        trainer = Trainer(workload, plan, group, rank_context(group.rank()), seed=4)
        start = values(trainer.model)
        steps = []
        for number in range(7):
            if number in {1, 2, 5}:
                trainer.resplit(number + number % 2, {1: (0, 4, 4), 2: (1, 1, 6), 5: (8, 0, 0)}[number])
            steps.append(trainer.step())
        trainer.flush()
        found = values(trainer.model)
        trainer.close()
        return start, found, steps

    ranks = on_ranks(3, run)
    assert not [found for found in ranks if isinstance(found, Exception)]
    model, data = workload.model(), workload.dataset()
    nn.utils.vector_to_parameters(ranks[0][0], model.parameters())
    optimizer = workload.optimizer(model)
    for number in range(7):
        epoch, within = divmod(number, 3)
        order = torch.randperm(21, generator=torch.Generator().manual_seed(4 * 1_000_003 + epoch))
        chunk = order[8 * within : 8 * within + 8]
        optimizer.zero_grad()
        loss = workload.loss(model, workload.collate([data[int(index)] for index in chunk]))
        loss.backward()
        optimizer.step()
        assert sum(steps[number].loss_share for _, _, steps in ranks) == pytest.approx(float(loss.detach()), rel=1e-12)
        assert sum(steps[number].num_samples for _, _, steps in ranks) == len(chunk)
        assert sum(steps[number].work for _, _, steps in ranks) == float((data.lengths[chunk] ** 2).sum())
    for _, found, _ in ranks:
        torch.testing.assert_close(found, values(model), rtol=1e-12, atol=1e-13)


def test_models_that_are_averaged_keep_their_split() -> None:
    def run(group: dist.ProcessGroup) -> None:
        plan = Plan(batch=BatchPlan(samples=(8,)), comm=CommPlan(reducer="averaged"))
        trainer = Trainer(Ragged(), plan, group, rank_context(0), seed=0)
        try:
            trainer.resplit(3, (8,))
        finally:
            trainer.close()

    (found,) = on_ranks(1, run)
    assert isinstance(found, SpecError)
    assert "use reducer 'bucketed' or 'scheduled'" in str(found)
