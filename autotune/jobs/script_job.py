"""A training script's job: its batches, how gradients are exchanged, and where it stands."""

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
from autotune.runtime.train.kept_norms import KeptNorms
from autotune.runtime.train.retuned_script import ScriptSteering
from autotune.runtime.train.script_reducer import ScriptReducer
from autotune.runtime.train.sync_batch_norm import SyncNorms
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


class Batches:
    """This rank's batches: each one, when it is taken, sets what this rank's loss counts."""

    def __init__(self, job: Parallel, epoch: Epoch) -> None:
        self._job, self._epoch = job, epoch

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        for dealt in self._epoch:
            self._job._weigh(dealt.weight, dealt.step, self._epoch.source)
            yield dealt.batch


class Parallel:
    """Models in training on all ranks of a job; made by `parallelize`."""

    def __init__(
        self,
        plan: Plan,
        control: Control,
        data: TrainingData,
        reducer_for: Callable[[Plan], ScriptReducer],
        open_group: Callable[[], dist.ProcessGroup],
    ) -> None:
        """`reducer_for`: made by all ranks together, once the one before it is gone. `open_group`: for means."""
        self._data, self._control = data, control
        self._reducer_for, self._open_group = reducer_for, open_group
        self._reducer = reducer_for(plan)
        self._leave = ExitStack()
        self._norms: SyncNorms | None = None
        self._kept_norms: KeptNorms | None = None
        self._steering: ScriptSteering | None = None
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

    def _weigh(self, weight: float, step: int, source: object = None) -> None:
        self._weight = weight
        self._reducer.take(weight, source)
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
        self._reducer.flush()

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
            del self._reducer, self._reducer_for, self._open_group
            if self._norms is not None:
                self._norms.detach()
            self._leave.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)
