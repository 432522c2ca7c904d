"""Emulated devices: real forward and backward run, and each module then sleeps until the device would have finished it.

A virtual clock advances by the cost of each module on the stated device (autotune.simulate.roofline) and the rank sleeps up
to it. Real work and its noise are hidden in the sleep as long as the machine is faster than the device. In backward the
sleep must precede the accumulation of a gradient, or communication would start too early. Accumulation hooks fire before
module backward hooks, so the sleep is in a tensor hook on the parameter. Modules without parameters of their own sleep when
the gradient of their output arrives. The optimizer is not paced.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.simulate.roofline import op_s
from autotune.workloads.capture import LOSS
from autotune.workloads.cluster import Device
from autotune.workloads.graph import Op, OpGraph

_MIN_SLEEP_S = 0.0002
"""Shorter sleeps overshoot by as much as they last; the debt is carried to the next module instead."""


class DevicePacer:
    """The emulated device of one rank. Call `begin` when a step starts.

    The thread that trains makes all calls, and its backward pass runs the hooks. Only `rebuild` may be called by another
    thread: `_serial` guards `_due_s`, the moment at which the device has done all that it was charged for.
    """

    def __init__(self, model: nn.Module, graph: OpGraph, device: Device) -> None:
        self.device = device
        """The present device: a scenario may change its speed between steps."""
        self._due_s = 0.0
        self._samples = 0.0
        self._charged: set[str] = set()
        self._serial = threading.Lock()
        self.late_s = 0.0
        """The delay of real work behind the device at the end of the step's last module."""
        self._loss_op = next((op for op in graph.ops if op.name == LOSS), None)
        self._handles: list[Any] = []
        self._attach(model, {op.name: op for op in graph.ops})

    def begin(self, num_samples: float) -> None:
        """Start a step now, or when the device has rebuilt what is still owed. `num_samples`: in samples of mean work."""
        with self._serial:
            self._due_s = max(self._due_s, time.perf_counter())
        self._samples, self.late_s = num_samples, 0.0
        self._charged.clear()

    def go_on(self, num_samples: float) -> None:
        """Start another pass of the step, over `num_samples`."""
        self._samples = num_samples
        self._charged.clear()

    def idle(self, seconds: float) -> None:
        """Add a wait of the device within a pass, which ends now. What it has rebuilt meanwhile is no wait."""
        with self._serial:
            self._due_s = max(self._due_s, min(self._due_s + seconds, time.perf_counter()))

    def rebuild(self, flops: float) -> None:
        """Charge additional arithmetic of another thread: it follows the module that the device is at, and delays the next."""
        assert self.device.flops_per_s is not None
        with self._serial:
            now = time.perf_counter()
            self._due_s = max(self._due_s, now) + flops / self.device.flops_per_s
            ahead_s = self._due_s - now
        time.sleep(ahead_s)

    def after_loss(self) -> None:
        """Charge the loss, which is computed outside every module, without a hook."""
        if self._loss_op is not None:
            both = op_s(self._loss_op, self.device, self._samples) + op_s(
                self._loss_op, self.device, self._samples, backward=True
            )
            self._charge(both)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _attach(self, model: nn.Module, ops: dict[str, Op]) -> None:
        owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        for name, module in model.named_modules():
            op = ops.get(name or "(model)")
            if op is None:
                continue
            own = [p for p in module.parameters(recurse=False) if p.requires_grad and owners[id(p)] == 1]
            for parameter in own:
                self._handles.append(parameter.register_hook(self._backward_hook(op)))
            self._handles.append(module.register_forward_hook(self._forward_hook(op, hook_output=not own)))

    def _forward_hook(self, op: Op, *, hook_output: bool) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._charge(op_s(op, self.device, self._samples) / op.num_calls)
            if hook_output and op.backward_factor > 0:
                for tensor in tree_leaves(output):
                    if isinstance(tensor, Tensor) and tensor.requires_grad:
                        tensor.register_hook(self._backward_hook(op))
                        break

        return hook

    def _backward_hook(self, op: Op) -> Callable[[Tensor], None]:
        def hook(_gradient: Tensor) -> None:
            if op.name not in self._charged:
                self._charged.add(op.name)
                self._charge(op_s(op, self.device, self._samples, backward=True))

        return hook

    def _charge(self, seconds: float) -> None:
        with self._serial:
            self._due_s += seconds
            ahead_s = self._due_s - time.perf_counter()
        self.late_s = max(-ahead_s, 0.0)
        if ahead_s > _MIN_SLEEP_S:
            time.sleep(ahead_s)
