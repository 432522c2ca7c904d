"""Data-parallel training by a plan: uneven batches, exactly weighted gradients, buckets, codecs; or torch DDP.

A rank's loss is the mean over its own samples. Weighted by b_i/B before backward, the sum over ranks is the gradient of
the mean over the whole batch, for every split. A loss that is a mean over tokens is weighted by tokens. A workload whose
loop accumulates, clips or casts (`autotune.workloads.workload.Loop`) is trained by that loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from autotune.profilers.ranges import Ranges
from autotune.runtime import device as devices
from autotune.runtime.control.network import Network
from autotune.runtime.data.micro_batches import MicroBatches, Pass, loss_of
from autotune.runtime.device import DeviceHandle, Stamp
from autotune.runtime.emulate.device_pacer import DevicePacer
from autotune.runtime.emulate.replay import Replay
from autotune.runtime.reduce.bucketed import Reducer
from autotune.runtime.reduce.factory import make_reducer
from autotune.runtime.reduce.initial_values import share_initial_values
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.train.memory import check_memory, static_bytes
from autotune.runtime.train.step import Step
from autotune.runtime.train.sync_batch_norm import SyncNorms
from autotune.runtime.waits import Waits
from autotune.workloads.capture import SavedTensorMeter
from autotune.workloads.cluster import Device
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan, ReducerKind
from autotune.workloads.workload import Workload, loop_of

OnComputed = Callable[[Callable[[], float]], Callable[[], None]]
"""Takes what gives the compute time of a step, and returns what is called once the device has computed: by another thread,
when the trainer may be in a later step.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """The context of one rank: its rank number, its real or emulated device, and the torch device of its tensors."""

    rank: int
    device: Device
    torch_device: torch.device
    graph: OpGraph | None = None
    """Costs of the model; given where the device is emulated."""
    is_first_of_host: bool = False
    timeout_s: float = 600.0
    """The longest wait for other ranks."""
    on_accelerators: bool = False
    """Whether any rank of the job trains on an accelerator."""
    network: Network = field(default_factory=Network.alone)
    """The control network of the job."""
    replay: Replay | None = None
    """The scenario that the cluster goes through, if any."""


class Trainer:
    """One rank of a job that trains `workload` by `plan`.

    One thread makes all calls. Gradient hooks run on the thread of the backward pass, while `step` waits for it.
    """

    def __init__(  # noqa: PLR0913 - what a trainer is made of
        self,
        workload: Workload,
        plan: Plan,
        group: dist.ProcessGroup,
        rank_context: RankContext,
        *,
        seed: int,
        norm_group: dist.ProcessGroup | None = None,
    ) -> None:
        """`norm_group`: for BatchNorm statistics, where `needs_norm_group`."""
        plan.validate(num_ranks=group.size(), global_batch=workload.global_batch)
        plan.check_runnable()
        assert not plan.is_placed, "a plan with stages is trained by PlanPipelineTrainer"
        self.plan, self.rank_context = plan, rank_context
        self._workload, self.loop = workload, loop_of(workload)
        self.group = group
        self.ranges = Ranges()
        """The phases of this trainer in a torch profile, while they are recorded."""
        torch.manual_seed(seed)
        self.model = workload.model().to(rank_context.torch_device)
        torch.manual_seed(seed + 1 + rank_context.rank)  # random draws of the model (dropout) differ between ranks
        self.optimizer = workload.optimizer(self.model)
        self._micro_batches = MicroBatches(workload, self.loop, plan.batch.samples, rank_context.rank, seed=seed)
        self.batches = self._micro_batches.batches
        self._pacer = (
            DevicePacer(self.model, rank_context.graph, rank_context.device) if rank_context.graph is not None else None
        )
        self._device = devices.handle(rank_context.torch_device)
        self._gradient: Stamp = self._device.stamp()
        self._begun_s = 0.0
        self._num_gradients = 0
        self._has_reported = self._is_last_pass = False
        self.on_computed: OnComputed | None = None
        """Called once per step, when the local gradients of this rank are posted."""
        self.on_failure: Callable[[Exception], None] = _raise
        """Called, by another thread, with an error that prevents that."""
        self._handles = [p.register_hook(self._note_gradient) for p in self.model.parameters() if p.requires_grad]
        self._norms: SyncNorms | None = None
        if synchronises_norms(workload, plan):
            assert norm_group is not None or not needs_norm_group(workload, plan)
            on_wait = self._pacer.idle if self._pacer is not None else None
            self._norms = SyncNorms(self.model, norm_group or group, on_wait)
        share_initial_values(self.model, group)
        self._reducer = self._make_reducer()
        self._is_recording = False
        self.num_steps = 0
        self._trained_s = 0.0
        self.peak_memory_bytes = 0

    def step(self) -> Step:
        """Train on the next global batch. The host waits once for an accelerator: at the end, so that its stamps are known."""
        self._enter_scenario()
        self._device.renew_clock()
        begin_s = self._begun_s = time.perf_counter()
        self._has_reported = False
        with self.ranges.phase("data"):
            part = self.batches.part(self.num_steps)
            passes = self._take(self.num_steps)
        data_s = time.perf_counter()
        stamps, losses = self._gradients(passes)
        late_s = self._pacer.late_s if self._pacer is not None else 0.0
        reduced = self._device.stamp()
        with self.ranges.phase("optimizer"):
            if self.loop.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.loop.clip_norm)
            self.optimizer.step()
            # Before the last stamp: reading it may wait for updates in other streams, which are part of the next step.
            loss = torch.stack(losses).sum() if losses else torch.zeros(())
        self.num_steps += 1
        end_s = self._device.stamp().seconds
        sent = self._reducer.sent()
        if self._norms is not None:
            sent = replace(sent, stalled_s=sent.stalled_s + self._norms.take_waited_s())
        self._trained_s += end_s - begin_s
        reduced_s = reduced.seconds
        seconds = [(forward.seconds, max(gradient.seconds, forward.seconds)) for forward, gradient in stamps]
        forward_s, gradient_s = seconds[-1]
        return Step(
            begin_s=begin_s,
            data_s=data_s,
            forward_s=forward_s,
            backward_s=min(gradient_s, reduced_s),
            reduced_s=reduced_s,
            end_s=end_s,
            loss_share=float(loss),
            num_samples=len(part.indices),
            work=part.work,
            late_s=max(late_s, sent.late_s),
            sent=sent,
            passes=tuple(seconds[:-1]),
        )

    def _enter_scenario(self) -> None:
        if self.rank_context.replay is not None:
            device = self.rank_context.replay.enter(num_steps=self.num_steps, trained_s=self._trained_s)
            if self._pacer is not None:
                self._pacer.device = device

    def metered_step(self) -> Step:
        """A step that also meters memory; not for scoring. Raises InfeasiblePlanError where the device cannot hold it."""
        meter = SavedTensorMeter(self.model)
        self._device.reset_peak()
        with meter.watch():
            step = self.step()
        held = static_bytes(self.model, self.optimizer, buffer_bytes=self._reducer.buffer_bytes)
        self.peak_memory_bytes = self._device.peak_bytes(held + meter.peak_bytes)
        check_memory(self.peak_memory_bytes, self.rank_context.device, self.rank_context.rank, step.num_samples)
        return step

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split batches like this from `from_step` on, which no rank has reached; the same call on all ranks."""
        if self.plan.comm.reducer == ReducerKind.AVERAGED:
            raise SpecError(
                "reducer 'averaged' weights models by the plan's samples, which therefore cannot change while it trains: "
                "use reducer 'bucketed' or 'scheduled'"
            )
        self.batches.resplit(from_step, samples)

    def switch(self, plan: Plan, group: dist.ProcessGroup) -> None:
        """Train by another plan from the next step on, over `group`; called by all ranks before the same step."""
        plan.validate(num_ranks=group.size(), global_batch=self._workload.global_batch)
        if plan.batch != self.plan.batch:
            self.resplit(self.num_steps, plan.batch.samples)
        before, self.plan = self.plan, plan
        if (plan.comm, plan.compression) != (before.comm, before.compression) or group is not self.group:
            owed = self._reducer.owed()
            self._reducer.detach(None)
            self.group = group
            self._reducer = self._make_reducer()
            self._reducer.owe(owed)
            self._reducer.record(on=self._is_recording)

    def _make_reducer(self) -> Reducer:
        context = self.rank_context
        setting = ReducerSettings(
            network=context.network,
            ranges=self.ranges,
            timeout_s=context.timeout_s,
            calls_begin=True,
            on_accelerators=context.on_accelerators,
        )
        if self._pacer is not None:
            setting = replace(setting, on_stall=self._pacer.idle, on_rebuild=self._pacer.rebuild)
        plan = self.plan
        # Clipping needs the norm of all gradients before any parameter is updated: no cross-step overlap.
        if self.loop.clip_norm is not None:
            plan = replace(plan, comm=replace(plan.comm, crosses_steps=False))
        return make_reducer(self.model, self.optimizer, plan, self.group, setting)

    def barrier(self) -> None:
        """Wait for all ranks, with nothing in flight."""
        self.flush()
        self.group.barrier().wait()

    def record_collectives(self, *, on: bool) -> None:
        """Record the collectives of the following steps, or stop. Emulated links always record theirs."""
        self._is_recording = on
        self._reducer.record(on=on)

    def flush(self) -> None:
        """Wait until every parameter is up to date: with cross-step overlap, gradients of the last step may be in flight."""
        self._reducer.flush()

    def whole_model(self) -> torch.nn.Module:
        """The model with its present parameters."""
        self.flush()
        return self.model

    def close(self, error: BaseException | None = None) -> None:
        """Release the group: as long as anything holds it, peers do not learn that this rank has left."""
        for handle in self._handles:
            handle.remove()
        if self._pacer is not None:
            self._pacer.detach()
        self.batches.close()
        if self._norms is not None:
            self._norms.detach()
        self._reducer.detach(error)
        del self._reducer, self.group

    def _take(self, step: int) -> list[Pass]:
        """The passes of this rank: at least one, and where layers exchange statistics as many as on every other rank."""
        passes = self._micro_batches.take(step)
        must_run = self._reducer.needs_backward or self._norms is not None
        num_passes = max(len(passes), 1)
        if self._norms is not None and self.loop.accumulate > 1:
            num_passes = self._most_passes(self._norms, num_passes)
        if len(passes) < num_passes:
            idle = self._micro_batches.idle() if must_run else Pass(batch=None)
            passes = [idle] * (num_passes - len(passes)) + passes
        return [replace(one, batch=to_device(one.batch, self._device)) for one in passes]

    def _most_passes(self, norms: SyncNorms, own: int) -> int:
        """The largest number of passes of any rank in this step."""
        ranks = torch.zeros(self.loop.accumulate + 1, dtype=torch.float64, device=self.rank_context.torch_device)
        ranks[own] = 1.0
        norms.add_up(ranks)
        return int(ranks.nonzero().max())

    def _gradients(self, passes: Sequence[Pass]) -> tuple[list[tuple[Stamp, Stamp]], list[torch.Tensor]]:
        """Compute the exact gradient of the whole batch. Returns the stamps of the loss and the last gradient of each pass,
        and the losses of the passes, times their shares of the batch.
        """
        stamps, losses = [], []
        for number, one in enumerate(passes):
            self._num_gradients, self._is_last_pass = 0, number == len(passes) - 1
            with nullcontext() if self._is_last_pass else self._reducer.no_sync():
                forward, loss = self._pass(one, is_first=number == 0)
            stamps.append((forward, self._gradient))
            if loss is not None:
                losses.append(loss.double() * one.weight)
        if not self._has_reported:
            self._report_computed()
        with self.ranges.phase("wait"):
            self._reducer.finish()
        return stamps, losses

    def _pass(self, one: Pass, *, is_first: bool) -> tuple[Stamp, torch.Tensor | None]:
        """Accumulate the gradients of one pass. Returns the stamp of the end of forward, and the loss."""
        if self._pacer is not None:
            (self._pacer.begin if is_first else self._pacer.go_on)(one.samples)
        with self.ranges.phase("forward"):
            if is_first:
                self._reducer.begin()
            if self._norms is not None:
                self._norms.counts = one.weight > 0
            loss = None if one.batch is None else self._forward(one.batch)
        forward = self._gradient = self._device.stamp()
        if loss is None:
            return forward, None
        with self.ranges.phase("backward"):
            torch.autograd.backward(loss * (self._reducer.loss_scale * one.weight))
        return forward, loss.detach()

    def _forward(self, batch: Any) -> torch.Tensor:
        loss = loss_of(self._workload, self.loop, self._reducer.model, batch, self.rank_context.torch_device)
        if self._pacer is not None:
            self._pacer.after_loss()
        return loss

    def _note_gradient(self, _gradient: Any) -> None:
        self._gradient = self._device.stamp()
        self._num_gradients += 1
        is_last = self._is_last_pass and self._num_gradients == len(self._handles)
        if is_last and self._reducer.waits_in_backward:
            self._report_computed()  # before the last gradient is posted: after this backward pass it would be too late

    def _report_computed(self) -> None:
        self._has_reported = True
        if self.on_computed is not None:
            waits = [self._reducer.stalls.so_far(), *([self._norms.waits.so_far()] if self._norms is not None else [])]
            tell = self.on_computed(partial(_computed_s, self._begun_s, self._gradient, waits))
            self._device.when_reached(self._gradient, tell, self.on_failure)


def synchronises_norms(workload: Workload, plan: Plan) -> bool:
    """Whether BatchNorm statistics are over all ranks, as the plan or the workload states."""
    return plan.batch.sync_norm or bool(getattr(workload, "sync_norm", False))


def needs_norm_group(workload: Workload, plan: Plan) -> bool:
    """Whether statistics need a group of their own: a scheduled reducer posts in an order that differs between ranks."""
    return synchronises_norms(workload, plan) and plan.comm.is_scheduled


def _computed_s(begun_s: float, computed: Stamp, waits: Sequence[Waits]) -> float:
    return computed.seconds - begun_s - sum(wait.seconds for wait in waits)


def _raise(error: Exception) -> None:
    raise error


def to_device(batch: Any, device: DeviceHandle) -> Any:
    """A batch with its tensors on `device`."""
    if not device.is_accelerator:
        return batch
    return torch.utils._pytree.tree_map(
        lambda leaf: device.to_device(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch
    )
