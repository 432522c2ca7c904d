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

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from autotune.job import read_plan_file
from autotune.retune_script import as_engine_runs, script_controller
from autotune.runtime.comm.engine import Engine
from autotune.runtime.comm.exchange import Setting
from autotune.runtime.comm.initial_values import share_initial_values
from autotune.runtime.control import Control, start_control
from autotune.runtime.groups import Groups, KeptGroups
from autotune.runtime.link_look import arrivals
from autotune.runtime.pilot import Pilot
from autotune.runtime.prefetch import Loading
from autotune.runtime.script_steering import Look, ScriptSteering
from autotune.runtime.sync_batch_norm import SyncNorms, batch_norms
from autotune.runtime.training_data import TrainingData
from results.decision import Decision
from results.wording import local_norms_warning
from workloads.cluster import load_cluster
from workloads.errors import SpecError
from workloads.plan import Plan

_TIMEOUT_S = 1800.0
"""The longest wait for other ranks."""


class Parallel:
    """A model in training on all ranks of a job."""

    def __init__(  # noqa: PLR0913 - made by parallelize only
        self,
        engine: Engine,
        plan: Plan,
        rank: int,
        leave: ExitStack,
        *,
        seed: int,
        norms: SyncNorms | None = None,
    ) -> None:
        self._engine, self._leave, self._norms = engine, leave, norms
        self._data = TrainingData(plan.batch.samples, rank, seed=seed)
        self._steering: ScriptSteering | None = None
        self.plan, self.rank = plan, rank

    def _steer(self, pilot: Pilot, engine_for: Callable[[Plan], Engine], look: Look) -> None:
        """Follow what a pilot says. `engine_for`: made by all ranks together, once the one before it is gone."""

        def switch(plan: Plan) -> Engine:
            weight = self._engine.weight
            self._engine.detach(None)
            self._engine, self.plan = engine_for(plan), plan
            self._engine.weight = weight
            return self._engine

        self._steering = ScriptSteering(self._engine.model, self._engine, self.plan, pilot, self._data, switch, look)

    def batches(
        self,
        dataset: Dataset[Any],
        *,
        epoch: int = 0,
        work: Sequence[float] | None = None,
        loss_weights: Sequence[float] | None = None,
        **loading: Any,
    ) -> Iterator[Any]:
        """This rank's batches of one epoch: every sample of the data set goes to one rank, in an order drawn anew for each
        epoch. A rank that the last, short batch has no sample for is given one that does not count.

        `work`: a number for each sample, such as its tokens; ranks then get work, not samples, as the plan divides the batch.
        `loss_weights`: what each sample counts, if your loss is not a mean over samples: its tokens, if it is one over tokens.
        `loading`: `num_workers`, `prefetch_factor`, `collate_fn`, `worker_init_fn`, as for torch's DataLoader. What is given with
        a data set at first holds for it from then on.
        """
        how = {"work": work, "loss_weights": loss_weights, "loading": Loading(**loading)}
        for batch, weight in self._data.epoch_of(dataset, epoch, **how):
            self._engine.weight = weight
            if self._norms is not None:
                self._norms.counts, self._norms.gradient_weight = weight > 0, weight
            yield batch

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Divide the batches of the data set that was used first like this, from a step that no rank has reached yet; steps
        count on from epoch to epoch, and `next_step` is the next. Every rank says the same.
        """
        self._data.resplit(from_step, samples)

    @property
    def next_step(self) -> int:
        """Of the data set that was used first, counted from the start of training."""
        return self._data.next_step

    @property
    def epoch(self) -> int:
        """Where to begin: 0, or the epoch in which the checkpoint that was loaded had been made."""
        return self._data.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where training stands in its data, to be saved with model and optimizer, after `optimizer.step()`."""
        return self._data.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: `batches` of the epoch that was interrupted yields what is left of it. On every rank, before
        the first batch.
        """
        self._data.load_state_dict(state)

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
        self._data.close()
        if self._steering is not None:
            self._steering.close()
        try:
            self._engine.detach(error)
        finally:
            del self._engine
            if self._norms is not None:
                self._norms.detach()
            self._leave.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def parallelize(  # noqa: PLR0913 - what a script may choose
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan | str | Path,
    *,
    cluster: str = "this-machine",
    seed: int = 0,
    sync_norm: bool = False,
    online: bool = False,
    on_decision: Callable[[Decision], None] = lambda _: None,
) -> Parallel:
    """Have `optimizer.step()` apply the gradients of all ranks, exchanged as `plan` says; called by all ranks together.

    `plan`: a plan, or a file that `autotune best --export` wrote. `cluster`: the mix it was made for, if its links are to
    count where shards are owned. `sync_norm`: BatchNorm layers take their statistics over all ranks, whatever the plan says;
    without it results depend on the split. `online`: samples move to other ranks when devices get slower or faster, and
    gradients travel another way when that is surely better, which rank 0's `on_decision` is told of; it does not change what
    is computed (docs/online.md).
    """
    control = start_control()
    chosen = plan if isinstance(plan, Plan) else read_plan_file(str(plan)).plan
    chosen = _checked(chosen, control)
    leave = ExitStack()
    mix = load_cluster(cluster).for_ranks(control.size)
    groups = Groups(control, mix)
    comm = chosen.comm
    kept = KeptGroups(groups, leave, timeout_s=_TIMEOUT_S)
    samples = chosen.batch.samples
    setting = Setting(weight=samples[control.rank] / sum(samples), timeout_s=_TIMEOUT_S)

    def engine_for(plan: Plan) -> Engine:
        return Engine(model, optimizer, plan, kept.of(plan.comm), setting)

    share_initial_values(model, kept.of(comm))
    engine = engine_for(chosen)
    norms = None
    if sync_norm or chosen.batch.sync_norm:
        own_group = leave.enter_context(
            groups.open(comm.transport, timeout_s=_TIMEOUT_S)
        )  # the engine posts in any order
        norms = SyncNorms(model, own_group)
    elif control.is_leader and (text := local_norms_warning(len(batch_norms(model)), num_ranks=control.size)):
        warnings.warn(text, stacklevel=2)
    job = Parallel(engine, chosen, control.rank, leave, seed=seed, norms=norms)
    if online:
        controller = script_controller(model, chosen, mix, on_decision) if control.is_leader else None
        pilot = Pilot(kept.of(comm), controller.decide if controller is not None else None, timeout_s=_TIMEOUT_S)
        job._steer(pilot, engine_for, lambda: arrivals(kept.of(job.plan.comm), groups.stand_ins))
    return job


def _checked(plan: Plan, control: Control) -> Plan:
    """As the engine carries it out: buckets are partitions that are sent as they are complete."""
    samples = plan.batch.samples
    if plan.pipeline is not None:
        raise SpecError(
            "the plan has pipeline stages, but a training script holds the whole model: train it by `autotune train`, or "
            "give the script a plan without stages"
        )
    plan.validate(num_ranks=control.size, global_batch=sum(samples))
    plan.check_runnable()
    if min(samples) < 1:
        raise SpecError(
            f"the plan gives a rank no samples ({list(samples)}): a training script needs one at least on every rank; "
            "run the sweep on the ranks that are to train"
        )
    return as_engine_runs(plan)
