"""Training loops as people write them, one after another, on any number of ranks: FILE gets what each has computed.

    mpirun -n 2 python training_loops.py found.json

The numbers must not depend on the number of ranks; float64 throughout.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import autotune
from autotune.runtime.control.start import this_launcher
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan

LAUNCHER = this_launcher()
SIZE = LAUNCHER.size
SAMPLES = {1: (8,), 2: (5, 3), 3: (4, 1, 3)}[SIZE]
OVERLAP: dict[str, Any] = {"reducer": "scheduled", "partition_bytes": 200, "credit_bytes": 400, "crosses_steps": True}
WITH_BARRIER = OVERLAP | {"crosses_steps": False}
COMMS: dict[str, dict[str, Any]] = {
    "overlap": OVERLAP,
    "overlap, fixed order": OVERLAP | {"priority": "fifo", "credit_bytes": 10**9},
    "barrier": WITH_BARRIER,
    "bucketed": {"reducer": "bucketed", "bucket_bytes": 300},
    "ddp": {"reducer": "ddp"},
}
LOOPS: dict[str, Callable[[str], Any]] = {}


def loop(*comms: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Run with these communication configurations; without any, with all."""

    def note(function: Callable[[str], Any]) -> Callable[[str], Any]:
        for comm in comms or COMMS:
            LOOPS[f"{function.__name__} [{comm}]"] = lambda comm=comm: function(comm)
        return function

    return note


def plan_of(comm: str, **compression: Any) -> Plan:
    return Plan(
        batch=BatchPlan(samples=SAMPLES), comm=CommPlan(**COMMS[comm]), compression=CompressionPlan(**compression)
    )


def net(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def data(count: int = 44, width: int = 4) -> TensorDataset:
    return TensorDataset(torch.randn(count, width, generator=torch.Generator().manual_seed(0)).double())


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.flip(1)[:, :2]).square().mean()


def values(*things: Any) -> list[float]:
    found: list[float] = []
    for thing in things:
        if isinstance(thing, nn.Module):
            found += values(*thing.state_dict().values())
        elif isinstance(thing, Tensor):
            found += (
                thing.detach().double().reshape(-1).tolist()
                if not thing.is_complex()
                else values(torch.view_as_real(thing))
            )
        elif isinstance(thing, list | tuple):
            found += values(*thing)
        else:
            found.append(float(thing))
    return found


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


@contextmanager
def started(comm: str, model: Any, optimizer: Any, **how: Any) -> Iterator[Any]:
    compression = {name: how.pop(name) for name in ("factors", "codec") if name in how}
    with autotune.parallelize(model, optimizer, plan_of(comm, **compression), **how) as job:
        yield job


# -- one loop for each row of what went wrong --------------------------------------------------------------------------


@loop()
def accumulation_with_weights_that_differ_between_its_batches(comm: str) -> Any:
    """The last batch is short; 44 samples in batches of 8, three to a step."""
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for epoch in range(2):
            for number, (x,) in enumerate(job.batches(data(), epoch=epoch)):
                last = number % 3 == 2
                with nullcontext() if last else job.no_sync():
                    (loss_of(model, x) / 3).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
    return values(model)


@loop("overlap", "barrier", "ddp")
def accumulation_with_loss_weights(comm: str) -> Any:
    model, weights = net(), torch.arange(1.0, 45.0).tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    table = TensorDataset(*data().tensors, torch.tensor(weights).double())
    with started(comm, model, optimizer) as job:
        for number, (x, w) in enumerate(job.batches(table, loss_weights=weights)):
            with job.no_sync() if number % 2 == 0 else nullcontext():
                rows = (model(x) - x.flip(1)[:, :2]).square().mean(1)
                ((rows * w).sum() / w.sum()).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return values(model)


@loop("overlap", "barrier", "bucketed", "ddp")
def samples_that_move_inside_an_accumulation_window(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    moved = {1: (8,), 2: (2, 6), 3: (1, 5, 2)}[SIZE]
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(48))):
            if number == 0:
                job.resplit(2, moved)
            with job.no_sync() if number % 3 < 2 else nullcontext():
                loss_of(model, x).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    return values(model)


@loop()
def clipping_that_does_not_bite_in_the_first_step(comm: str) -> Any:
    model, norms = net(), []
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e9 if number < 3 else 0.01))
            optimizer.step()
    return values(model, norms)


@loop()
def gradients_logged_and_steps_skipped_by_them(comm: str) -> Any:
    model, norms = net(), []
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
            if float(norms[-1]) < float(norms[0]):
                optimizer.step()
    return values(model, norms)


@loop()
def a_layer_unfrozen_and_frozen_later(comm: str) -> Any:
    model = net()
    model[0].requires_grad_(False)
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            if number == 3:
                model[0].requires_grad_(True)
            if number == 6:
                model[2].requires_grad_(False)
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop()
def a_group_of_parameters_added_later(comm: str) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.05, momentum=0.9)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            if number == 3:
                optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.02})
            optimizer.zero_grad()
            model[0].zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "overlap, fixed order", "barrier", "bucketed")
def several_backward_passes_and_a_parameter_that_no_rank_uses(comm: str) -> Any:
    model = nn.ModuleDict({"net": net(), "unused": nn.Linear(3, 3).double()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    model.forward = model["net"].forward
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            loss_of(model, x).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return values(model)


@loop("overlap", "barrier")
def factors_under_autocast(comm: str) -> Any:
    model = net().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with started(comm, model, optimizer, factors=("2",)) as job:
        for (x,) in job.batches(data(40)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, x.float())
            loss.backward()
            optimizer.step()
    return {"close": values(model)}


@loop("overlap", "barrier", "ddp")
def fused_optimizer_and_loss_scaling(comm: str) -> Any:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x)).backward()
            scaler.step(optimizer)
            scaler.update()
    return values(model)


@loop("overlap", "barrier", "bucketed", "ddp")
def sparse_gradients(comm: str) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2)).double()
    dense, table = list(model[2].parameters()), list(model[0].parameters())
    optimizers = [torch.optim.AdamW(dense, lr=0.01), torch.optim.SparseAdam(table, lr=0.02)]
    tokens = TensorDataset(torch.randint(0, 20, (44, 2), generator=torch.Generator().manual_seed(2)))
    with started(comm, model, optimizers) as job:
        for epoch in range(2):
            for number, (x,) in enumerate(job.batches(tokens, epoch=epoch)):
                model(x).square().mean().backward()
                if number % 2:
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
    return values(model)


class Unordered(nn.Module):
    """Registers its layers in another order than it calls them, and calls one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(6, 2), nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.first(x).tanh()).tanh()
        return self.last(self.middle(h))


@loop()
def layers_registered_in_another_order_than_they_are_called(comm: str) -> Any:
    torch.manual_seed(3)
    model = Unordered().double()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        if comm == "overlap":
            urgent = job._reducer.buffers[-1].parameters
            assert any(p is q for p in urgent for q in model.first.parameters()), "the first layer called is not first"
    return values(model)


@loop()
def accumulation_without_no_sync(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for epoch in range(2):
            for number, (x,) in enumerate(job.batches(data(), epoch=epoch)):
                (loss_of(model, x) / 3).backward()
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
    return values(model)


@loop()
def two_optimizers_of_which_one_was_given(comm: str) -> Any:
    model = net()
    mine, other = torch.optim.AdamW(model[0].parameters(), lr=0.01), torch.optim.SGD(model[2:].parameters(), lr=0.05)
    with started(comm, model, mine) as job:
        for (x,) in job.batches(data(80)):
            mine.zero_grad()
            other.zero_grad()
            loss_of(model, x).backward()
            mine.step()
            other.step()
    return values(model)


@loop()
def two_models_and_two_optimizers(comm: str) -> Any:
    """As an adversarial pair: each loss reaches both models."""
    one, two = net(1), net(2)
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.01), torch.optim.SGD(two.parameters(), lr=0.05)]
    with started(comm, [one, two], optimizers) as job:
        for (x,) in job.batches(data(80)):
            optimizers[0].zero_grad()
            (one(x) - two(x)).square().mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            (one(x) + two(x) - x[:, :2]).square().mean().backward()
            optimizers[1].step()
    return values(one, two)


@loop()
def a_model_that_a_job_trains_already(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer), pytest.raises(SpecError, match="trains this model already"):
        autotune.parallelize(model, optimizer, plan_of(comm))
    return []


@loop()
def moving_averages_after_step(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    manual_means = [p.detach().clone() for p in model.parameters()]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    kept = copy.deepcopy(model)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            for mean, p in zip(manual_means, model.parameters(), strict=True):
                mean.mul_(0.9).add_(p.data, alpha=0.1)
            averaged.update_parameters(model)
            with torch.no_grad():
                for p in model[4].parameters():
                    p.clamp_(-0.2, 0.2)
            kept.load_state_dict(copy.deepcopy(model).state_dict())
    return values(model, manual_means, averaged.module, kept)


@loop("overlap", "barrier")
def a_compiled_forward_pass(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    compiled = torch.compile(model, backend="eager")
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            loss_of(compiled, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "barrier", "ddp")
def optimizer_state_loaded_on_rank_0_only(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    if LAUNCHER.rank == 0:
        loss_of(model, data()[:][0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.03
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(40)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "barrier", "ddp")
def an_own_loader_that_states_how_many_samples_it_has(comm: str) -> Any:
    """Rank r takes every SIZE-th sample; without job.count() the weight of its gradients is unknown."""
    model, (whole,) = net(), data(40).tensors
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for number in range(5):
            x = whole[8 * number : 8 * number + 8][job.rank :: job.size]
            optimizer.zero_grad()
            if number == 0:
                with pytest.raises(SpecError, match=r"job\.count"):
                    loss_of(model, x).backward()
                optimizer.zero_grad()
            job.count(len(x))
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "ddp")
def a_loader_with_a_distributed_sampler(comm: str) -> Any:
    model, dataset = net(), data(40)
    optimizer = adamw(model)
    sampler: Any = DistributedSampler(dataset, num_replicas=SIZE, rank=LAUNCHER.rank, shuffle=False)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=8 // SIZE if 8 % SIZE == 0 else 8, sampler=sampler)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(loader):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "bucketed", "ddp")
def local_norms_and_a_last_batch_of_few_samples(comm: str) -> Any:
    """Statistics are those of ranks, so only that it runs is compared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    optimizer = adamw(model)
    if SIZE == 3:
        with pytest.raises(SpecError, match="BatchNorm layers, which need two"):
            autotune.parallelize(model, optimizer, plan_of(comm))
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with started(comm, model, optimizer) as job:
            for (x,) in job.batches(data(19 if SIZE > 1 else 18)):
                optimizer.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()
    return []


@loop("overlap", "barrier")
def synchronised_norms_and_short_batches(comm: str) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # Adam would step by the noise of zeros
    with started(comm, model, optimizer, sync_norm=True) as job:
        for _ in range(2):
            for number, (x,) in enumerate(job.batches(data(42))):
                with job.no_sync() if number % 2 == 0 else nullcontext():
                    loss_of(model, x).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    return values(model)


@loop("overlap")
def an_epoch_loop_without_epochs(comm: str) -> Any:
    model, orders, dataset = net(), [], data(40)
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for _ in range(3):
            seen = 0.0
            for number, (x,) in enumerate(batches := job.batches(dataset)):
                seen += (number + 1) * float(job.mean(x.sum()))
                optimizer.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()
            assert len(batches) == 5
            orders.append(round(seen, 9))
        assert len(set(orders)) == 3, "every epoch has the same order"
    return values(model)


@loop()
def batches_taken_before_they_are_used(comm: str) -> Any:
    """Fine while they count alike, refused where they do not: 19 samples make batches of 8, 8 and 3."""
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for count, is_refused in ((24, False), (19, SIZE > 1)):
            taken = list(job.batches(data(count)))
            with pytest.raises(SpecError, match="taken before") if is_refused else nullcontext():
                for number, (x,) in enumerate(taken):
                    with job.no_sync() if number < len(taken) - 1 else nullcontext():
                        loss_of(model, x).backward()
                optimizer.step()
            optimizer.zero_grad()
    return []


# -- further habits ----------------------------------------------------------------------------------------------------


@loop()
def steps_that_are_called_twice_and_gradients_never_zeroed(comm: str) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            loss_of(model, x).backward()
            optimizer.step()
            if number % 2:
                optimizer.step()
    return values(model)


@loop()
def gradients_edited_by_every_means(comm: str) -> Any:
    model, seen = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(80))):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss_of(model, x).backward()
            if number % 4 == 1:
                model[0].weight.grad = model[0].weight.grad * 0.5
            elif number % 4 == 2:
                model[2].bias.grad = None
            elif number % 4 == 3:
                model[4].weight.grad.add_(0.01)
            optimizer.step()
            seen.append(model[0].bias.grad.norm())
    return values(model, seen)


@loop()
def parameters_whose_memory_is_replaced(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            model[0].weight.data = model[0].weight.data.clamp(-0.3, 0.3)
            nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model[2].parameters()), model[2].parameters())
    return values(model)


@loop("overlap", "barrier", "bucketed")
def a_parameter_that_only_the_optimizer_knows(comm: str) -> Any:
    model, temperature = net(), nn.Parameter(torch.tensor(1.0 + LAUNCHER.rank).double())
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.05)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(80)):
            optimizer.zero_grad()
            (model(x) * temperature - x[:, :2]).square().mean().backward()
            optimizer.step()
    return values(model, temperature)


@loop("overlap", "barrier")
def plans_that_are_switched_with_gradients_there(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(96))):
            if number in (3, 6, 9):
                job.switch(plan_of({3: "bucketed", 6: "overlap, fixed order", 9: "ddp"}[number]))
            loss_of(model, x).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    return values(model)


@loop("overlap", "barrier")
def factors_accumulated_and_thrown_away(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer, factors=("2",)) as job:
        for number, (x,) in enumerate(job.batches(data(96))):
            with job.no_sync() if number % 3 < 2 else nullcontext():
                loss_of(model, x).backward()
            if number == 4:
                model.zero_grad()
            if number == 7:
                optimizer.zero_grad(set_to_none=False)
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    return values(model)


@loop("overlap", "barrier", "bucketed", "ddp")
def complex_parameters(comm: str) -> Any:
    class Phase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(
                torch.randn(4, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(4))
            )

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex128) @ self.turn).abs()

    model = Phase()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(60)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


@loop("overlap", "barrier", "bucketed")
def reentrant_checkpoints_and_closures(comm: str) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with started(comm, model, optimizer) as job:
        for (x,) in job.batches(data(60)):

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                hidden = torch.utils.checkpoint.checkpoint(model[:2], x.clone().requires_grad_(), use_reentrant=True)
                hidden = torch.utils.checkpoint.checkpoint(model[2:4], hidden, use_reentrant=False)
                loss = (model[4](hidden) - x[:, :2]).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    return values(model)


@loop("overlap", "barrier", "bucketed", "ddp")
def a_backward_pass_that_fails_and_is_caught(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for number, (x,) in enumerate(job.batches(data(60))):
            if number == 3:
                bad = model(x)
                bad.register_hook(lambda _: (_ for _ in ()).throw(ValueError("planned")))
                try:
                    bad.sum().backward()
                except ValueError:
                    optimizer.zero_grad()
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return values(model)


class Stream(Dataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from data(44).tensors[0]


@loop("overlap")
def iterable_data(comm: str) -> Any:
    model = net()
    optimizer = adamw(model)
    with started(comm, model, optimizer) as job:
        for _ in range(2):
            for x in job.batches(Stream()):
                optimizer.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()
    return values(model)


def main() -> None:
    logging.getLogger("autotune").setLevel(logging.ERROR)
    chosen = sys.argv[2:]
    found = {}
    for name, run in LOOPS.items():
        if not chosen or any(text in name for text in chosen):
            try:
                found[name] = run()
            except Exception as error:  # noqa: BLE001 - the test names the loop that failed
                found[name] = f"{type(error).__name__}: {error}"
            if LAUNCHER.rank == 0:
                Path(sys.argv[1]).write_text(json.dumps(found))


main()
