"""What a training script imports: models and optimizers of your own, trained by a plan that a sweep has found.

    import autotune

    with autotune.parallelize(model, optimizer, "plan.json") as job:
        for inputs, targets in job.batches(dataset):
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()

Start it as `mpirun -n N python script.py`; without mpirun it is a job of one process. The loss is the mean over the samples
of the batch that a rank was given; ranks may be given different numbers of them, and the result is what one process would
compute on all of them. Models and optimizers stay your own objects, with the state dicts they had (docs/your-script.md).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.retune_script import script_controller
from autotune.runtime.comm.engine import Engine
from autotune.runtime.comm.exchange import Setting
from autotune.runtime.comm.initial_values import share_initial_values
from autotune.runtime.comm.make_units import Models, optimized
from autotune.runtime.control import Control, check_launcher, speak_briefly, start_control
from autotune.runtime.groups import Groups, KeptGroups
from autotune.runtime.kept_norms import KeptNorms
from autotune.runtime.link_look import arrivals
from autotune.runtime.pilot import Pilot
from autotune.runtime.script_reducer import ScriptReducer, make_script_reducer
from autotune.runtime.script_start import check_alike, share_optimizer_states, trained_shapes
from autotune.runtime.script_steering import Look, ScriptSteering
from autotune.runtime.sync_batch_norm import SyncNorms, batch_norms
from autotune.runtime.training_data import Epoch, TrainingData
from autotune.script_plan import check_made_for, check_script_plan, choose_plan
from results.decision import Decision
from results.environment import processor_name
from results.wording import local_norms_warning
from workloads.cluster import load_cluster
from workloads.errors import SpecError
from workloads.plan import Plan

_TIMEOUT_S = 1800.0
"""The longest wait for other ranks."""
_NORM_SAMPLES = 2
"""BatchNorm needs more than one value per channel."""
_LOG = logging.getLogger("autotune")
_TRAINING: set[int] = set()
"""Parameters, by id, that a job trains."""

Reducers = Callable[[Plan], ScriptReducer]


class Batches:
    """This rank's batches: each one, when it is taken, sets what this rank's loss counts."""

    def __init__(self, job: Parallel, epoch: Epoch) -> None:
        self._job, self._epoch = job, epoch

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        for dealt in self._epoch:
            self._job._weigh(dealt.weight, dealt.step)
            yield dealt.batch


class Parallel:
    """Models in training on all ranks of a job; made by `parallelize`."""

    def __init__(
        self, reducer: ScriptReducer, plan: Plan, control: Control, data: TrainingData, leave: ExitStack
    ) -> None:
        self._reducer, self._data, self._leave, self._control = reducer, data, leave, control
        self._norms: SyncNorms | None = None
        self._kept_norms: KeptNorms | None = None
        self._steering: ScriptSteering | None = None
        self._reducer_for: Reducers | None = None
        self._open_group: Callable[[], dist.ProcessGroup] | None = None
        self._weight = 1.0
        self.plan, self.rank, self.size = plan, control.rank, control.size

    def batches(self, dataset: Any, **how: Any) -> Batches:
        """This rank's batches of one epoch: every sample of the data set goes to one rank, in an order drawn anew for each
        epoch. A rank that the last, short batch has no sample for is given samples that do not count. Take a batch when you
        are about to use it: taking it sets what this rank's loss counts.

        `dataset`: with len() and indexing, or iterable, or a DataLoader, which is taken apart. `how`: `epoch` (epochs count
        themselves without it), `shuffle`, `sampler` (the order of all samples), `drop_last`, and torch's DataLoader arguments
        `num_workers`, `prefetch_factor`, `collate_fn`, `worker_init_fn`, `pin_memory`, `persistent_workers`, `timeout`.
        `work`: a number for each sample, such as its tokens; ranks then get work, not samples, as the plan divides the batch.
        `loss_weights`: what each sample counts, if your loss is not a mean over samples: its tokens, if it is one over tokens.
        """
        return Batches(self, self._data.batches(dataset, **how))

    def count(self, num_samples: int) -> None:
        """For a loader of your own: this rank's next batch has so many samples. Called by all ranks before each batch."""
        counts = self._control.share(num_samples)
        if sum(counts) < 1 or min(counts) < 0:
            raise SpecError(f"the ranks' batches have {counts} samples: one at least, and none negative")
        self._weigh(num_samples / sum(counts), self._reducer.batch_number + 1)

    def _weigh(self, weight: float, step: int) -> None:
        self._weight = self._reducer.weight = weight
        self._reducer.batch_number = step
        if self._norms is not None:
            self._norms.counts, self._norms.gradient_weight = weight > 0, weight
        if self._kept_norms is not None:
            self._kept_norms.before_batch(counts=weight > 0)

    def mean(self, value: float | Tensor) -> Any:
        """The mean over ranks, each weighted by its samples of the current batch; called by all ranks together. Of a mean over
        a rank's batch, such as its loss, this is the mean over the whole batch. A tensor of a tensor, else a float.
        """
        own = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        share = (
            own.to(torch.promote_types(own.dtype, torch.float32)) * self._weight
            if self._weight
            else torch.zeros_like(own)
        )
        if self.size > 1:
            assert self._open_group is not None
            flat = share.to("cpu").contiguous().reshape(-1)
            self._open_group().allreduce([flat], dist.AllreduceOptions()).wait()
            share = flat.view(own.shape).to(own.device)
        return share if isinstance(value, Tensor) else float(share)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Divide the batches of the data set that was used first like this, from a step that no rank has reached yet; steps
        count on from epoch to epoch, and `next_step` is the next. Every rank says the same.
        """
        self._data.resplit(from_step, samples)

    def switch(self, plan: Plan) -> None:
        """Exchange gradients as another plan says, for the same batch; called by all ranks between two batches. Samples are
        divided as before: see `resplit`. Gradients that were accumulated inside no_sync() must have been exchanged.
        """
        if not self._reducer.is_between_steps:
            raise SpecError(
                "switch() inside a window of no_sync(): run the backward pass that exchanges gradients first"
            )
        check_script_plan(plan, self.size, allow_lossy=not self.plan.is_lossless)
        self._reducer.settle()
        self._switch(plan)

    def _switch(self, plan: Plan) -> ScriptReducer:
        assert self._reducer_for is not None
        before, owed = self._reducer, self._reducer.owed()
        before.detach(None)
        self._reducer, self.plan = self._reducer_for(plan), plan
        self._reducer.owe(owed)
        self._reducer.weight = before.weight
        self._reducer.batch_number, self._reducer.num_loads = before.batch_number, before.num_loads
        return self._reducer

    @property
    def next_step(self) -> int:
        """Of the data set that was used first, counted from the start of training."""
        return self._data.next_step

    @property
    def epoch(self) -> int:
        """Where to begin: 0, or the epoch in which the checkpoint that was loaded had been made."""
        return self._data.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where training stands in its data, to be saved with models and optimizers, after `optimizer.step()`. With a lossy
        plan, also what its codecs still owe: then all ranks must call this, and any of them may save it.
        """
        state = self._data.state_dict()
        return state if self.plan.is_lossless else state | {"owed": self._reducer.owed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: `batches` of the epoch that was interrupted yields what is left of it. On every rank, before
        the first batch; the number of ranks may be another than that of the checkpoint.
        """
        self._data.load_state_dict({name: value for name, value in state.items() if name != "owed"})
        self._reducer.owe(state.get("owed", {}))

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate gradients; the next one outside exchanges what all of them left."""
        return self._reducer.no_sync()

    def wait(self) -> None:
        """Until nothing is on its way. Whatever uses a parameter or a gradient waits for it by itself; a tensor that shares a
        parameter's memory (`view = p.data`) and was kept from before does not.
        """
        self._reducer.settle()

    @property
    def barrier_reason(self) -> str:
        """Why a step ends only when all gradients have arrived; empty where the next begins before."""
        return self._reducer.barrier_reason

    def close(self, error: BaseException | None = None) -> None:
        """The last step's gradients arrive, and models and optimizers are plain ones again."""
        self._data.close()
        if self._steering is not None:
            self._steering.close()
        if self._kept_norms is not None:
            self._kept_norms.before_batch(counts=True)
        try:
            self._reducer.detach(error)
        finally:
            self._reducer_for = self._open_group = None
            del self._reducer
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
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    plan: Plan | str | Path | None = None,
    *,
    global_batch: int | None = None,
    cluster: str = "this-machine",
    seed: int = 0,
    sync_norm: bool = False,
    online: bool = False,
    on_decision: Callable[[Decision], None] = lambda _: None,
    allow_lossy: bool = False,
    force: bool = False,
) -> Parallel:
    """Have `optimizer.step()` apply the gradients of all ranks, exchanged as `plan` says; called by all ranks together.

    `model`, `optimizer`: one or several of each. All ranks begin with rank 0's values and optimizer state.
    `plan`: a file that `autotune best --export` wrote, or a plan; without one torch DDP's defaults with an even split of
    `global_batch`, the samples of all ranks in one step. With a plan, another `global_batch` is divided in its proportions.
    `cluster`: the mix that the plan was made for. `sync_norm`: BatchNorm layers take their statistics over all ranks, whatever
    the plan says; without it results depend on the split. `online`: samples move to other ranks when devices get slower or
    faster, and gradients are exchanged another way when that is surely better, which rank 0's `on_decision` is called with;
    it does not change what is computed (docs/online.md). `allow_lossy`: accept a plan that changes what is computed. `force`:
    accept a plan that was made for another model or cluster.
    """
    check_launcher()
    models = _listed(model, nn.Module, "model")
    optimizers = _listed(optimizer, Optimizer, "optimizer")
    whole = models[0] if len(models) == 1 else Models(models)
    control = start_control()
    speak_briefly()
    chosen, kept = choose_plan(plan, global_batch, control.size)
    check_script_plan(chosen, control.size, allow_lossy=allow_lossy)
    mix = load_cluster(cluster).for_ranks(control.size).on_hardware(control.share(processor_name()))
    if kept is not None and not force:
        check_made_for(kept, trained_shapes(whole), mix)
    check_alike(control, whole, optimizers, chosen)
    leave = ExitStack()
    _claim([*whole.parameters(), *(p for one in optimizers for p in optimized(one))], leave)
    groups = Groups(control, mix)
    kept_groups = KeptGroups(groups, leave, timeout_s=_TIMEOUT_S)

    def reducer_for(plan: Plan) -> ScriptReducer:
        made = make_script_reducer(whole, optimizers, plan, kept_groups.of(plan.comm), setting)
        if isinstance(made, Engine) and control.is_leader:
            made.on_barrier = lambda reason: _LOG.warning("autotune: %s: such steps no longer overlap", reason)
        return made

    known = {id(p) for p in whole.parameters()}
    others = [p.detach() for one in optimizers for p in optimized(one) if id(p) not in known]
    share_initial_values(whole, kept_groups.of(chosen.comm), others)
    share_optimizer_states(control, optimizers)
    setting = Setting(weight=None, timeout_s=_TIMEOUT_S)
    syncs = sync_norm or chosen.batch.sync_norm
    has_local_norms = bool(batch_norms(whole)) and not syncs
    if has_local_norms and control.size > 1 and min(chosen.batch.samples) < _NORM_SAMPLES:
        raise SpecError(
            f"the plan gives a rank one sample ({list(chosen.batch.samples)}) and the model has BatchNorm layers, which need two: "
            "pass sync_norm=True, or sweep with a workload whose min_samples is 2"
        )
    data = TrainingData(
        chosen.batch.samples,
        control.rank,
        seed=seed,
        min_samples=_NORM_SAMPLES if has_local_norms else 1,
        share=control.broadcast if control.size > 1 else None,
    )
    job = Parallel(reducer_for(chosen), chosen, control, data, leave)
    job._reducer_for = reducer_for
    job._open_group = _opener(groups, leave)
    _watch_loads(job, models, optimizers, leave)
    if syncs:
        own_group = leave.enter_context(
            groups.open(chosen.comm.transport, timeout_s=_TIMEOUT_S)
        )  # its order is its own
        job._norms = SyncNorms(whole, own_group)
    elif has_local_norms:
        job._kept_norms = KeptNorms(whole)
        if control.is_leader and (text := local_norms_warning(len(batch_norms(whole)), num_ranks=control.size)):
            warnings.warn(text, stacklevel=2)
    if online:
        controller = script_controller(whole, chosen, mix, on_decision) if control.is_leader else None
        pilot = Pilot(
            kept_groups.of(chosen.comm), controller.decide if controller is not None else None, timeout_s=_TIMEOUT_S
        )
        look: Look = lambda: arrivals(kept_groups.of(job.plan.comm), groups.stand_ins)  # noqa: E731
        job._steering = ScriptSteering(whole, job._reducer, chosen, pilot, data, job._switch, look)
    return job


def _listed(given: Any, kind: type[Any], what: str) -> list[Any]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if not listed or not all(isinstance(one, kind) for one in listed):
        names = ", ".join(type(one).__name__ for one in listed) or "nothing"
        raise SpecError(f"parallelize() was given {names} as {what}: give a torch {kind.__name__}, or a list of them")
    return listed


def _claim(parameters: Sequence[Tensor], leave: ExitStack) -> None:
    """A parameter is trained by one job at a time."""
    ids = {id(p) for p in parameters}
    if ids & _TRAINING:
        raise SpecError(
            "a job trains this model already: leave its `with` block (or call job.close()) before parallelize() is called again"
        )
    _TRAINING.update(ids)
    leave.callback(_TRAINING.difference_update, ids)


def _opener(groups: Groups, leave: ExitStack) -> Callable[[], dist.ProcessGroup]:
    """A group for the script's own means, opened by all ranks when the first is asked for."""
    opened: list[dist.ProcessGroup] = []
    leave.callback(opened.clear)

    def group() -> dist.ProcessGroup:
        if not opened:
            opened.append(leave.enter_context(groups.open("gloo", timeout_s=_TIMEOUT_S)))
            leave.callback(opened.clear)
        return opened[0]

    return group


def _watch_loads(job: Parallel, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], leave: ExitStack) -> None:
    """Checkpoints that are loaded later must be loaded on all ranks: a rank that loads alone is found out."""

    def loaded(*_: Any) -> None:
        job._reducer.num_loads += 1

    watched: list[Any] = [*models, *optimizers]
    for one in watched:
        hook = one.register_load_state_dict_post_hook(loaded)
        leave.callback(hook.remove)
