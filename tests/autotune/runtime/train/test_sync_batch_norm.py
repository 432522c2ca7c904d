"""Synchronised BatchNorm: any split is one process on the whole batch, ranks without samples included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.control.network import Network
from autotune.runtime.train.sync_batch_norm import SyncNorms, batch_norms
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload
from tests.gloo_ranks import gloo_group, on_networks, on_ranks

BOUND = 1e-10


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of all values together, relative to the expected ones."""
    one, two = (torch.cat([t.detach().double().reshape(-1) for t in tensors]) for tensors in (ours, theirs))
    return float((one - two).norm() / two.norm())


def net() -> nn.Module:
    """All dimensions, an affine-free layer, one without running statistics, one with a cumulative mean, one in the middle."""
    return nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, affine=False, momentum=None),
        nn.ReLU(),
        nn.Flatten(2),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, 2),
    ).double()


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1).mean()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("split", [(5, 7), (1, 11), (2, 0, 10), (4, 4, 4)])
@pytest.mark.parametrize("weighted_after", [False, True])
def test_gradients_and_running_statistics_are_those_of_the_whole_batch(
    split: tuple[int, ...], weighted_after: bool
) -> None:
    torch.manual_seed(0)
    start = net()
    x = 50 + torch.randn(12, 3, 6, 6, dtype=torch.float64)  # a mean that is large beside the spread
    whole = copy.deepcopy(start)
    for _ in range(2):
        whole.zero_grad()
        loss_of(whole, x).backward()
    begins = [sum(split[:rank]) for rank in range(len(split))]

    def run(group: dist.ProcessGroup) -> nn.Module:
        rank = group.rank()
        model, count = copy.deepcopy(start), split[rank]
        norms = SyncNorms(model, group)
        assert len(norms) == 4
        own = x[begins[rank] : begins[rank] + count] if count else x[:1] * 0 + 7.0
        weight = count / 12
        norms.counts, norms.gradient_weight = count > 0, weight if weighted_after else 1.0
        for _ in range(2):
            model.zero_grad()
            loss = loss_of(model, own)
            (loss if weighted_after else loss * weight).backward()
        assert norms.take_waited_s() > 0.0
        norms.detach()
        if weighted_after:
            for gradient in gradients(model):
                gradient.mul_(weight)
        return model

    ranks = on_ranks(len(split), run)
    failed = [found for found in ranks if isinstance(found, Exception)]
    assert not failed
    summed = [torch.stack(parts).sum(0) for parts in zip(*(gradients(model) for model in ranks), strict=True)]
    assert distance(summed, gradients(whole)) < BOUND
    for model in ranks:
        for ours, theirs in zip(model.buffers(), whole.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=BOUND, atol=BOUND)


def test_evaluation_and_detached_layers_are_torchs_own() -> None:
    model = net()
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    expected = model.eval()(x)

    def run(group: dist.ProcessGroup) -> tuple[Tensor, list[str]]:
        norms = SyncNorms(model, group)
        state = list(model.state_dict())
        found = model.eval()(x)
        norms.detach()
        return found, state

    ((found, state),) = on_ranks(1, run)
    assert torch.equal(found, expected)
    assert state == list(net().state_dict())
    assert not any("forward" in layer.__dict__ for layer in batch_norms(model))


def test_a_single_value_per_channel_is_refused_on_all_ranks() -> None:
    def run(group: dist.ProcessGroup) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(2))
        norms = SyncNorms(model, group)
        norms.counts = group.rank() == 0
        return model(torch.zeros(1, 2))

    assert [type(found) for found in on_ranks(2, run)] == [ValueError, ValueError]


class TestTraining:
    """A resnet with BatchNorm, trained for some steps with splits that change and a short last batch."""

    samples, changed, num_steps = (5, 1, 2), (2, 6, 0), 5

    def workload(self) -> Any:
        made: Any = load_workload("resnet-tiny", {"norm": "batch", "dtype": "float64", "global_batch": "8"})
        data = made.dataset()
        small = torch.utils.data.TensorDataset(*(tensor[:20] for tensor in data.tensors))  # 8, 8 and 4
        return Renamed(made, small)

    @pytest.mark.parametrize(
        ("comm", "bound"),
        [
            (CommPlan(bucket_bytes=2**14), BOUND),
            (CommPlan(reducer="scheduled", partition_bytes=2**13, credit_bytes=2**15), BOUND),
            (CommPlan(reducer="scheduled", partition_bytes=2**13, credit_bytes=2**15, crosses_steps=True), BOUND),
        ],
    )
    def test_uneven_training_is_training_on_the_whole_batch(self, comm: CommPlan, bound: float) -> None:
        workload = self.workload()
        ranks = self.train(workload, comm, sync_norm=True)
        start, ours, _ = ranks[0]
        theirs, expected = self.alone(workload, start)
        assert distance(ours, theirs) < bound
        assert [sum(parts) for parts in zip(*(one[2] for one in ranks), strict=True)] == pytest.approx(expected)
        assert all(distance(one[1], ours) == 0.0 for one in ranks)

    def test_without_it_the_split_shows(self) -> None:
        workload = self.workload()
        start, ours, _ = self.train(workload, CommPlan(), sync_norm=False)[0]
        assert distance(ours, self.alone(workload, start)[0]) > 1e-3

    def train(self, workload: Any, comm: CommPlan, *, sync_norm: bool) -> list[Any]:
        plan = Plan(batch=BatchPlan(samples=self.samples, sync_norm=sync_norm), comm=comm)
        rank_context = {"device": load_cluster("this-machine").devices[0], "torch_device": torch.device("cpu")}
        stores = dist.HashStore(), dist.HashStore()

        def run(network: Network) -> Any:
            rank = network.rank
            group, norm_group = (gloo_group(store, rank, 3) for store in stores)
            trainer = Trainer(
                workload,
                plan,
                group,
                RankContext(rank=rank, network=network, **rank_context),
                seed=3,
                norm_group=norm_group,
            )
            start = copy.deepcopy(trainer.model.state_dict())
            trainer.resplit(2, self.changed)
            steps = [trainer.step() for _ in range(self.num_steps)]
            trainer.flush()
            state = [t.clone() for t in trainer.model.state_dict().values()]
            trainer.close()
            return start, state, [step.loss_share for step in steps]

        return on_networks(3, run)

    def alone(self, workload: Any, start: Any) -> tuple[list[Tensor], list[float]]:
        model = workload.model()
        model.load_state_dict(start)
        optimizer, data, losses = workload.optimizer(model), workload.dataset(), []
        for step in range(self.num_steps):
            epoch, within = divmod(step, 3)
            order = torch.randperm(20, generator=torch.Generator().manual_seed(3 * 1_000_003 + epoch))
            optimizer.zero_grad()
            loss = workload.loss(model, data[order[8 * within : 8 * within + 8]])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return list(model.state_dict().values()), losses


class Renamed:
    """A workload on other data."""

    def __init__(self, workload: Any, dataset: Any) -> None:
        self._workload, self._dataset = workload, dataset

    def dataset(self) -> Any:
        return self._dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)
