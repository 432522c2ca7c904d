"""What a training script imports: a model and an optimizer of your own, trained by a plan that a sweep has found.

    from autotune.api import parallelize

    with parallelize(model, optimizer, "plan.json") as job:
        for inputs, targets in job.batches(dataset):
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()

Start it as `mpirun -n N python script.py`. The loss is the mean over the samples of the batch that a rank was given; ranks
may be given different numbers of them, and the result is what one process would compute on all of them. Model and optimizer
stay your own objects, with the state dicts they had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from autotune.job import read_plan_file
from autotune.runtime.comm.engine import Engine
from autotune.runtime.comm.exchange import Setting
from autotune.runtime.control import Control, start_control
from autotune.runtime.data import Batches
from autotune.runtime.groups import Groups
from workloads.cluster import load_cluster
from workloads.errors import SpecError
from workloads.plan import CommPlan, Plan

UNLIMITED_BYTES = 2**62
_TIMEOUT_S = 1800.0
"""The longest wait for other ranks."""


class Parallel:
    """A model in training on all ranks of a job."""

    def __init__(self, engine: Engine, plan: Plan, rank: int, leave: ExitStack, *, seed: int) -> None:
        self._engine, self._leave, self._seed = engine, leave, seed
        self.plan, self.rank = plan, rank

    def batches(self, dataset: Dataset[Any], *, epoch: int = 0) -> Iterator[Any]:
        """This rank's batches of one epoch: every sample of the data set goes to one rank, in an order drawn anew for each
        epoch. A rank that the last, short batch has no sample for is given one that does not count.
        """
        batches = Batches(dataset, self.plan.batch.samples, self.rank, seed=self._seed)
        for step in range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch):
            batch, num_samples, total = batches.take(step)
            self._engine.weight = num_samples / total
            yield batch if batch is not None else batches.fetch(torch.tensor([0]))

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate gradients; the next one outside exchanges what all of them left."""
        return self._engine.no_sync()

    def wait(self) -> None:
        """Until every parameter is up to date. Calling the model and saving it do this by themselves; reading parameters
        elsewhere, for a moving average or a statistic, needs it after `optimizer.step()`.
        """
        self._engine.settle()

    @property
    def barrier_reason(self) -> str:
        """Why a step ends only when all gradients have arrived; empty where the next begins before."""
        return self._engine.barrier_reason

    def close(self, error: BaseException | None = None) -> None:
        """The last step's gradients arrive, and model and optimizer are plain ones again."""
        try:
            self._engine.detach(error)
        finally:
            del self._engine
            self._leave.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def parallelize(
    model: nn.Module, optimizer: Optimizer, plan: Plan | str | Path, *, cluster: str = "this-machine", seed: int = 0
) -> Parallel:
    """Have `optimizer.step()` apply the gradients of all ranks, exchanged as `plan` says; called by all ranks together.

    `plan`: a plan, or a file that `autotune best --export` wrote. `cluster`: the mix it was made for, if its links are to
    count where shards are owned.
    """
    control = start_control()
    chosen = plan if isinstance(plan, Plan) else read_plan_file(str(plan)).plan
    chosen = _checked(chosen, control)
    leave = ExitStack()
    groups = Groups(control, load_cluster(cluster).for_ranks(control.size))
    comm = chosen.comm
    group = leave.enter_context(
        groups.open(comm.transport, collective=comm.collective, servers=comm.servers, timeout_s=_TIMEOUT_S)
    )
    samples = chosen.batch.samples
    setting = Setting(weight=samples[control.rank] / sum(samples), timeout_s=_TIMEOUT_S)
    return Parallel(Engine(model, optimizer, chosen, group, setting), chosen, control.rank, leave, seed=seed)


def _checked(plan: Plan, control: Control) -> Plan:
    """As the engine carries it out: buckets are partitions that are sent as they are complete."""
    samples = plan.batch.samples
    plan.validate(num_ranks=control.size, global_batch=sum(samples))
    plan.check_runnable()
    if min(samples) < 1:
        raise SpecError(
            f"the plan gives a rank no samples ({list(samples)}): a training script needs one at least on every rank; "
            "run the sweep on the ranks that are to train"
        )
    if plan.comm.reducer == "scheduled":
        return plan
    comm = CommPlan(
        reducer="scheduled",
        transport=plan.comm.transport,
        collective=plan.comm.collective,
        servers=plan.comm.servers,
        partition_bytes=plan.comm.bucket_bytes,
        credit_bytes=UNLIMITED_BYTES,
        priority="fifo",
    )
    return replace(plan, comm=comm)
