"""The API of training scripts: train your own models and optimizers by a plan that a sweep has found.

    import autotune

    device = autotune.device()
    model.to(device)
    with autotune.parallelize(model, optimizer, "plan.json") as job:
        for inputs, targets in job.batches(dataset):
            optimizer.zero_grad()
            loss_fn(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()

Start it as `mpirun -n N python script.py`, or by `torchrun` or `srun`; without a launcher it is a job of one process. The loss is the mean over the samples
of a rank's batch. Ranks may have batches of different sizes; the result is that of one process on the whole batch. Models
and optimizers stay your own objects, with their state dicts (docs/your-script.md).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.jobs.online_script import script_controller
from autotune.jobs.script_job import Parallel
from autotune.jobs.script_plan import check_made_for, check_script_plan, check_transport, choose_plan
from autotune.online.controller import Controller
from autotune.results.judge.wording import local_norms_warning
from autotune.results.store.decision import Decision
from autotune.results.store.environment import processor_name
from autotune.runtime import device as devices
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.rank_start import set_script_threads, take_cores, take_devices
from autotune.runtime.control.start import shorten_shared_errors, start_control
from autotune.runtime.control.step_directives import StepCoordinator
from autotune.runtime.data.script_data import TrainingData
from autotune.runtime.device import CPU, DeviceHandle, handle
from autotune.runtime.override import Hook
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.initial_values import share_initial_values
from autotune.runtime.reduce.make_buffers import Models, optimized
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.train.local_batch_norm import NORM_SAMPLES, LocalNorms, check_norms
from autotune.runtime.train.retuned_script import RetunedScript
from autotune.runtime.train.script_reducer import ScriptReducer, make_script_reducer
from autotune.runtime.train.script_start import check_alike, share_optimizer_states, trained_shapes
from autotune.runtime.train.sync_batch_norm import SyncNorms, batch_norms
from autotune.runtime.transport.group_cache import GroupCache
from autotune.runtime.transport.groups import Groups
from autotune.runtime.transport.link_check import probe_links
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CommPlan, Plan, cpu_transports
from autotune.workloads.plan.choices import transports_for

__all__ = ["Parallel", "device", "parallelize"]

_TIMEOUT_S = 1800.0
"""The longest wait for other ranks."""
_LOG = logging.getLogger("autotune")
_TRAINING: set[int] = set()
"""The ids of the parameters that a job trains."""


def device() -> torch.device:
    """What this rank computes on: an accelerator of its own, or the CPU where there is none left; called by all ranks together.

    Move models to it before `parallelize`, and batches as in a script of one process.
    """
    control = _join_job()
    chosen = take_devices(control, devices.visible()).ranks[control.rank]
    return devices.take(chosen.index).device


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
    """Make `optimizer.step()` apply the gradients of all ranks, exchanged by `plan`; called by all ranks together.

    `model`, `optimizer`: one or several of each. All ranks begin with rank 0's values and optimizer state.
    `plan`: a file that `autotune best --export` wrote, or a plan; without one torch DDP's defaults with an even split of
    `global_batch`, the samples of all ranks in one step. With a plan, another `global_batch` is split in its proportions.
    `cluster`: the cluster that the plan was made for. `sync_norm`: BatchNorm statistics are over all ranks, whatever the plan
    states; without it results depend on the split. `online`: the split follows the speed of the devices, and the
    communication configuration changes where another one is surely better; rank 0 calls `on_decision` with each change.
    This does not change what is computed (docs/online.md). `allow_lossy`: accept a plan that changes what is computed.
    `force`: accept a plan that was made for another model or cluster.
    """
    models = _listed(model, nn.Module, "model")
    script = _Script(
        models=models,
        optimizers=_listed(optimizer, Optimizer, "optimizer"),
        whole=models[0] if len(models) == 1 else Models(models),
        seed=seed,
        sync_norm=sync_norm,
    )
    control = _join_job()
    device = script.device
    accelerators = control.share(device.device.type if device.is_accelerator else "")
    transport = transports_for(accelerators, cpu_transports())[0]
    chosen, kept = choose_plan(plan, global_batch, control.size, transport=transport)
    check_script_plan(chosen, control.size, allow_lossy=allow_lossy)
    check_transport(chosen, accelerators)
    found = load_cluster(cluster).for_ranks(control.size)
    found = found.on_hardware(control.share(device.hardware or processor_name()))
    if kept is not None and not force:
        check_made_for(kept, trained_shapes(script.whole), found)
    check_norms(script.num_local_norms(chosen), chosen.batch.samples)
    check_alike(control, script.whole, script.optimizers, chosen)
    with ExitStack() as leave:
        opener = Groups(control, found, device)
        groups = leave.enter_context(GroupCache(opener, timeout_s=_TIMEOUT_S))
        setting = ReducerSettings(
            weight=None, timeout_s=_TIMEOUT_S, network=control.network(), on_accelerators=any(accelerators)
        )
        job = _assemble(script, chosen, control, groups, setting, leave)
        if online:
            controller = script_controller(script.whole, chosen, found, on_decision) if control.is_leader else None
            hosts = opener.host_representatives
            _retune(job, script, control, controller, lambda: probe_links(groups.switch(job.plan.comm), hosts))
        job._leave = leave.pop_all()
    return job


@dataclass(frozen=True, kw_only=True, slots=True)
class _Script:
    """The models and settings of a training script."""

    models: list[nn.Module]
    optimizers: list[Optimizer]
    whole: nn.Module
    """All models together."""
    seed: int
    sync_norm: bool

    def syncs(self, plan: Plan) -> bool:
        return self.sync_norm or plan.batch.sync_norm

    def num_local_norms(self, plan: Plan) -> int:
        """The number of BatchNorm layers with local statistics."""
        return 0 if self.syncs(plan) else len(batch_norms(self.whole))

    @property
    def device(self) -> DeviceHandle:
        """Of the model's parameters."""
        found = {p.device for p in self.whole.parameters()}
        if len(found) > 1:
            raise SpecError(
                f"the model's parameters are on {' and '.join(sorted(map(str, found)))}: a rank trains on one device; move the "
                "model to one, or start a rank for each device"
            )
        return handle(found.pop()) if found else CPU

    def other_parameters(self) -> list[Tensor]:
        """Parameters of an optimizer that are not the model's."""
        known = {id(p) for p in self.whole.parameters()}
        return [p for one in self.optimizers for p in optimized(one) if id(p) not in known]


def _join_job() -> Control:
    """This process as a rank, with its cores; called by all ranks together."""
    shorten_shared_errors()
    control = start_control()
    control.network()  # first: from here on a rank that ends in any way is noticed by all
    set_script_threads(control, take_cores(control))
    return control


def _assemble(  # noqa: PLR0913, PLR0917 - what a job is made of
    script: _Script, plan: Plan, control: Control, groups: GroupCache, setting: ReducerSettings, leave: ExitStack
) -> Parallel:
    """Make the job; called by all ranks together."""
    _claim([*script.whole.parameters(), *script.other_parameters()], leave)
    share_initial_values(script.whole, groups.switch(plan.comm), script.other_parameters())
    share_optimizer_states(control, script.optimizers)

    def reducer_for(plan: Plan) -> ScriptReducer:
        made = make_script_reducer(script.whole, script.optimizers, plan, groups.switch(plan.comm), setting)
        if isinstance(made, CrossStepReducer) and control.is_leader:
            made.on_barrier = lambda reason: _LOG.warning("autotune: %s: such steps do not overlap", reason)
        return made

    num_local_norms = script.num_local_norms(plan)
    data = TrainingData(
        plan.batch.samples,
        control.rank,
        seed=script.seed,
        min_samples=NORM_SAMPLES if num_local_norms else 1,
        share=control.broadcast if control.size > 1 else None,
    )
    job = Parallel(plan, control, data, reducer_for, lambda: groups.get(CommPlan(transport="gloo"), "means"))
    _watch_loads(job, script, leave)
    if script.syncs(plan):
        job._norms = SyncNorms(script.whole, groups.get(CommPlan(transport=plan.comm.transport), "batch norm"))
    elif num_local_norms:
        job._local_norms = LocalNorms(script.whole)
        if control.is_leader and (text := local_norms_warning(num_local_norms, num_ranks=control.size)):
            warnings.warn(text, stacklevel=3)
    return job


def _retune(
    job: Parallel,
    script: _Script,
    control: Control,
    controller: Controller | None,
    probe: Callable[[], tuple[float, ...]],
) -> None:
    """Let the controller of rank 0 change split and communication between steps; `probe` measures the links."""
    decide = controller.decide if controller is not None else None
    coordinator = StepCoordinator(control.network(), decide, timeout_s=_TIMEOUT_S)
    job._retuned = RetunedScript(script.whole, job._reducer, job.plan, coordinator, job._data, job._switch, probe)


def _listed(given: Any, kind: type[Any], what: str) -> list[Any]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if not listed or not all(isinstance(one, kind) for one in listed):
        names = ", ".join(type(one).__name__ for one in listed) or "nothing"
        raise SpecError(f"parallelize() was given {names} as {what}: give a torch {kind.__name__}, or a list of them")
    return listed


def _claim(parameters: Sequence[Tensor], leave: ExitStack) -> None:
    """Refuse parameters that another job trains."""
    ids = {id(p) for p in parameters}
    if ids & _TRAINING:
        raise SpecError(
            "a job trains this model already: leave its `with` block (or call job.close()) before parallelize() is called again"
        )
    _TRAINING.update(ids)
    leave.callback(_TRAINING.difference_update, ids)


def _watch_loads(job: Parallel, script: _Script, leave: ExitStack) -> None:
    """Count loaded checkpoints: later ones must be loaded on all ranks, and reducers detect a rank that loads alone."""

    def loaded(*_: Any) -> None:
        job._reducer.num_loads += 1

    watched: list[Any] = [*script.models, *script.optimizers]
    for one in watched:
        leave.callback(one.register_load_state_dict_post_hook(Hook(loaded)).remove)
