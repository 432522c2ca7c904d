"""Torch's DistributedDataParallel for a training script that calls its own model.

DDP expects to be called in place of the model. Hooks before and after the model's forward pass do what DDP's forward does
around it, as torch's composable `replicate` does. DDP averages over ranks, so a gradient is multiplied by N·b_i/B before it
is accumulated. Everything else, with all limits, is DDP's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autotune.runtime.override import Hook
from autotune.runtime.reduce.batch_weights import BatchWeights
from autotune.runtime.reduce.bucketed import RecordingGroup
from autotune.runtime.reduce.make_buffers import check_sparse, optimized, roots_of, signature, trained_parameters
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.reduce.step_position import odd_rank, out_of_step, position_of
from autotune.runtime.tracked import accumulator_of
from autotune.runtime.waits import Waits
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import DDP_BUCKET_BYTES, MIB, Plan


class ScriptDdp(RecordingGroup, BatchWeights):
    """One DDP for each model of a script.

    The thread that trains makes all calls; gradient hooks run on autograd's threads, during its backward pass.
    """

    barrier_reason = "reducer 'ddp' waits for all gradients"

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        plan: Plan,
        group: dist.ProcessGroup,
        setting: ReducerSettings,
    ) -> None:
        self.model, self._optimizers, self._plan, self._group = model, list(optimizers), plan, group
        self.stalls = Waits()
        super().__init__(setting.weight)
        self.batch_number = self.num_loads = self._num_steps = 0
        self._compared: tuple[Any, Tensor, int] | None = None
        self._syncs, self._is_unsynced, self._task = True, False, -1
        self._build()

    @property
    def is_between_steps(self) -> bool:
        return not self._is_unsynced

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate."""
        before, self._syncs = self._syncs, False
        try:
            with ExitStack() as stack:
                for ddp in self._ddps.values():
                    stack.enter_context(ddp.no_sync())
                yield
        finally:
            self._syncs = before

    def flush(self) -> None:
        """Nothing to do: parameters are always up to date."""

    def owed(self) -> dict[str, Tensor]:
        """Empty: DDP's fp16 hook has no error feedback."""
        return {}

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Discards the residuals."""

    def detach(self, error: BaseException | None = None) -> None:
        if error is None:
            self._check_positions()
        self._compared = None
        self._take_down()
        del self._group

    def _build(self) -> None:
        self._check_optimizers()
        check_sparse(trained_parameters(self.model, self._optimizers), self._plan)
        self._signature = self._signature_now()
        # Unset, DDP's cap is 25 MiB with a small first bucket; set, it applies to all buckets.
        cap_bytes = self._plan.comm.bucket_bytes
        options: dict[str, Any] = {
            "process_group": self._group,
            "bucket_cap_mb": None if cap_bytes == DDP_BUCKET_BYTES else cap_bytes / MIB,
            "init_sync": False,
            "find_unused_parameters": True,
        }
        roots = roots_of(self.model)
        trained = [root for root in roots if any(p.requires_grad for p in root.parameters())]
        self._ddps = {root: DistributedDataParallel(root, **options) for root in trained}
        if self._plan.compression.codec == "fp16":
            for ddp in self._ddps.values():
                ddp.register_comm_hook(self._group, fp16_compress_hook)
        self._has_run = dict.fromkeys(self._ddps, False)
        self._handles = [
            *self._hook_gradients(),
            *(root.register_forward_pre_hook(Hook(self._before), prepend=True, with_kwargs=True) for root in roots),
            *(root.register_forward_hook(Hook(self._after)) for root in roots),
            *(optimizer.register_step_pre_hook(lambda *_: self._before_step()) for optimizer in self._optimizers),
        ]

    def _take_down(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._accumulators.clear()
        self._exchanged.clear()
        self._ddps.clear()

    def _check_optimizers(self) -> None:
        known = {id(p) for p in self.model.parameters()}
        for optimizer in self._optimizers:
            if any(id(p) not in known and p.requires_grad for p in optimized(optimizer)):
                raise SpecError(
                    f"{type(optimizer).__name__} has parameters that are not the model's, which reducer 'ddp' does not exchange: "
                    "make them parameters of the model, or use a plan with reducer 'scheduled'"
                )

    def _signature_now(self) -> tuple[object, ...]:
        return signature(list(self.model.parameters()), self._optimizers)

    def _hook_gradients(self) -> list[Any]:
        self._accumulators: list[Any] = []
        self._exchanged: list[nn.Parameter] = []
        handles = []
        for root in self._ddps:
            for parameter in root.parameters():
                if parameter.requires_grad:
                    self._exchanged.append(parameter)
                    node = accumulator_of(parameter)
                    self._accumulators.append(node)
                    handles.append(node.register_prehook(self._weigh(root)))
        return handles

    def _weigh(self, root: nn.Module) -> Any:
        def hook(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...] | None:
            if (task := torch._C._current_graph_task_id()) != self._task:
                self._task = task
                self._is_unsynced = not self._syncs
                self._check_pass(root)
            (gradient,) = gradients
            assert self.weight is not None
            factor = self.weight * self._group.size()
            if gradient is None or factor == 1.0:
                return None
            # A sparse gradient times 0 keeps its rows, which optimizers such as SparseAdam would update.
            return (gradient * factor if factor else torch.zeros_like(gradient),)

        return hook

    def _check_pass(self, root: nn.Module) -> None:
        self.begin_pass()
        if self._syncs and not self._has_run[root]:
            raise SpecError(
                "a backward pass follows another one, or a part of the model, without a forward pass of the model, and reducer "
                "'ddp' does not exchange its gradients: use a plan with reducer 'scheduled'"
            )
        if self._syncs:
            self._has_run = dict.fromkeys(self._has_run, False)
            self._compare_positions()

    def _compare_positions(self) -> None:
        """Post a check that all ranks are at the same place of the script; the optimizer step waits for its result."""
        self._check_positions()
        position, rank = position_of(self.batch_number, self._num_steps, self.num_loads), self._group.rank()
        sums = torch.tensor([position, position * (rank + 1), position * position], dtype=torch.float64)
        work = self._group.allreduce([sums], dist.AllreduceOptions())
        self._compared = (work, sums, position)

    def _check_positions(self) -> None:
        if self._compared is not None:
            work, sums, position = self._compared
            self._compared = None
            work.wait()
            if (odd := odd_rank(sums, self._group.size(), self._group.rank(), position)) is not None:
                raise SpecError(out_of_step(odd))

    def _before(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling() and self._signature_now() != self._signature:
            if self._is_unsynced:
                self._exchange_accumulated()
            self._take_down()
            self._build()
        if root not in self._ddps:
            return None
        self._has_run[root] = True
        changed: tuple[Any, Any] = self._ddps[root]._pre_forward(*args, **kwargs)
        return changed

    def _exchange_accumulated(self) -> None:
        """Of passes inside no_sync(): another DDP has no record of them, so it would leave out parameters that are frozen now
        and those that its own passes do not use. What it averages once more stays as it is.
        """
        kinds = [[p.grad is not None, p.grad is not None and p.grad.is_sparse] for p in self._exchanged]
        found = torch.tensor(kinds, dtype=torch.float64)
        self._sum(found)
        for parameter, (is_used, is_sparse) in zip(self._exchanged, found.tolist(), strict=True):
            if is_used:
                if parameter.grad is None:
                    layout = torch.sparse_coo if is_sparse else torch.strided
                    parameter.grad = torch.zeros_like(parameter, layout=layout)
                self._sum(parameter.grad)
                parameter.grad.div_(self._group.size())

    def _sum(self, values: Tensor) -> None:
        """Over all ranks, in place."""
        real = torch.view_as_real(values) if values.is_complex() else values
        self._group.allreduce([real], dist.AllreduceOptions()).wait()

    def _after(self, root: nn.Module, _args: Any, output: Any) -> Any:
        return self._ddps[root]._post_forward(output) if root in self._ddps else None

    def _before_step(self) -> None:
        self._check_positions()
        self._num_steps += 1
        if self._is_unsynced:
            raise SpecError(
                "optimizer.step() follows backward passes inside no_sync() only, and reducer 'ddp' exchanges gradients in "
                "backward(): run the last one outside, or use a plan with reducer 'scheduled'"
            )
