"""The job of a training script: its batches, the exchange of its gradients, and its position for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.jobs.script_plan import check_script_plan
from autotune.runtime.control.mpi import Control
from autotune.runtime.data.script_data import Epoch, TrainingData
from autotune.runtime.train.local_batch_norm import LocalNorms
from autotune.runtime.train.retuned_script import RetunedScript
from autotune.runtime.train.script_reducer import ScriptReducer
from autotune.runtime.train.sync_batch_norm import SyncNorms
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


class Batches:
    """The batches of this rank. Taking a batch sets the weight of this rank's loss."""

    def __init__(self, job: Parallel, epoch: Epoch) -> None:
        self._job, self._epoch = job, epoch

    def __len__(self) -> int:
        """The number of steps of an epoch."""
        return len(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        for dealt in self._epoch:
            self._job._weigh(dealt.weight, dealt.step, self._epoch.source)
            yield dealt.batch


class Parallel:
    """Models in training on all ranks of a job; made by `parallelize`.

    Not thread-safe: the thread that trains makes all calls.
    """

    def __init__(
        self,
        plan: Plan,
        control: Control,
        data: TrainingData,
        reducer_for: Callable[[Plan], ScriptReducer],
        open_group: Callable[[], dist.ProcessGroup],
    ) -> None:
        """`reducer_for`: called by all ranks together, after the previous reducer is detached. `open_group`: for means."""
        self._data, self._control = data, control
        self._reducer_for, self._open_group = reducer_for, open_group
        self._reducer = reducer_for(plan)
        self._leave = ExitStack()
        self._norms: SyncNorms | None = None
        self._local_norms: LocalNorms | None = None
        self._retuned: RetunedScript | None = None
        self._weight = 1.0
        self.plan, self.rank, self.size = plan, control.rank, control.size

    def batches(self, dataset: Any, **how: Any) -> Batches:
        """The batches of this rank in one epoch: each sample of the data set goes to one rank, in an order drawn for each
        epoch. A rank without samples in the last, short batch gets samples of weight 0. Take a batch just before you use
        it: taking it sets the weight of this rank's loss.

        `dataset`: with len() and indexing, or iterable, or a DataLoader, whose parts are used. `how`: `epoch` (default: the
        next one), `shuffle`, `sampler` (the order of all samples), `drop_last`, and torch's DataLoader arguments
        `num_workers`, `prefetch_factor`, `collate_fn`, `worker_init_fn`, `pin_memory`, `persistent_workers`, `timeout`.
        `work`: a number per sample, such as its tokens; the plan then splits work instead of samples.
        `loss_weights`: the weight of each sample where the loss is not a mean over samples: its tokens for a mean over tokens.
        """
        return Batches(self, self._data.batches(dataset, **how))

    def count(self, num_samples: int) -> None:
        """For a loader of your own: the samples of this rank's next batch. Called by all ranks before each batch."""
        counts = self._control.share(num_samples)
        if sum(counts) < 1 or min(counts) < 0:
            raise SpecError(f"the ranks' batches have {counts} samples: one at least, and none negative")
        self._weigh(num_samples / sum(counts), self._reducer.batch_number + 1)

    def _weigh(self, weight: float, step: int, source: object = None) -> None:
        self._weight = weight
        self._reducer.take(weight, source)
        self._reducer.batch_number = step
        if self._norms is not None:
            self._norms.counts, self._norms.gradient_weight = weight > 0, weight
        if self._local_norms is not None:
            self._local_norms.before_batch(counts=weight > 0)

    def mean(self, value: float | Tensor) -> Any:
        """The mean over ranks, weighted by their samples of the current batch; called by all ranks together. For a mean over
        a rank's batch, such as its loss, this is the mean over the whole batch. A tensor for a tensor, else a float.
        """
        own = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        share = (
            own.to(torch.promote_types(own.dtype, torch.float32)) * self._weight
            if self._weight
            else torch.zeros_like(own)
        )
        if self.size > 1:
            flat = share.to("cpu").contiguous().reshape(-1)
            self._open_group().allreduce([flat], dist.AllreduceOptions()).wait()
            share = flat.view(own.shape).to(own.device)
        return share if isinstance(value, Tensor) else float(share)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """Split the batches of the data set that was used first like this, from a step on that no rank has reached. Steps
        are counted over all epochs; `next_step` is the next. The same call on all ranks.
        """
        self._data.resplit(from_step, samples)

    def switch(self, plan: Plan) -> None:
        """Exchange gradients by another plan, for the same batch; called by all ranks between two batches. The split stays:
        see `resplit`. Gradients accumulated inside no_sync() must have been exchanged.
        """
        if not self._reducer.is_between_steps:
            raise SpecError(
                "switch() inside a window of no_sync(): run the backward pass that exchanges gradients first"
            )
        check_script_plan(plan, self.size, allow_lossy=not self.plan.is_lossless)
        self._reducer.flush()
        self._switch(plan)

    def _switch(self, plan: Plan) -> ScriptReducer:
        before, owed = self._reducer, self._reducer.owed()
        before.detach(None)
        try:
            self._reducer = self._reducer_for(plan)
            self.plan = plan
        except SpecError:
            self._reducer = self._reducer_for(self.plan)
            raise
        finally:
            self._take_over(before, owed)
        return self._reducer

    def _take_over(self, before: ScriptReducer, owed: dict[str, Tensor]) -> None:
        self._reducer.owe(owed)
        self._reducer.weight = before.weight
        self._reducer.batch_number, self._reducer.num_loads = before.batch_number, before.num_loads

    @property
    def next_step(self) -> int:
        """The next step of the data set that was used first, counted from the start of training."""
        return self._data.next_step

    @property
    def epoch(self) -> int:
        """The epoch to begin with: 0, or that of the loaded checkpoint."""
        return self._data.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position of training in its data, to be saved with models and optimizers, after `optimizer.step()`. With a
        lossy plan also the residuals of its codecs: then all ranks must call this, and any of them may save it.
        """
        state = self._data.state_dict()
        return state if self.plan.is_lossless else state | {"owed": self._reducer.owed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume: `batches` of the interrupted epoch yields its remaining steps. Called on every rank before the first batch;
        the number of ranks may differ from that of the checkpoint.
        """
        self._data.load_state_dict({name: value for name, value in state.items() if name != "owed"})
        self._reducer.owe(state.get("owed", {}))

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate gradients; the next one outside exchanges the sum."""
        return self._reducer.no_sync()

    def wait(self) -> None:
        """Wait until nothing is in flight. Every use of a parameter or a gradient waits for it automatically; an older tensor
        that shares the memory of a parameter (`view = p.data`) does not.
        """
        self._reducer.flush()

    @property
    def barrier_reason(self) -> str:
        """Why steps do not overlap; empty with cross-step overlap."""
        return self._reducer.barrier_reason

    def close(self, error: BaseException | None = None) -> None:
        """Wait for the gradients of the last step, and restore models and optimizers."""
        self._control.begin_to_leave(error)
        self._data.close()
        if self._retuned is not None:
            self._retuned.close()
        if self._local_norms is not None:
            self._local_norms.before_batch(counts=True)
        try:
            self._reducer.detach(error)
        finally:
            del self._reducer, self._reducer_for, self._open_group
            if self._norms is not None:
                self._norms.detach()
            try:
                self._leave.close()
            finally:
                self._control.leave(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)
