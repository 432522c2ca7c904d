"""A model as costs: what each op computes, moves, stores and owns, per sample."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.serial import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One module of the model, without its children. Costs are of the forward pass: cost(b) = fixed + per_sample · b."""

    name: str
    kind: str
    num_calls: int
    flops_per_sample: float
    fixed_bytes: float
    bytes_per_sample: float
    param_bytes: int
    backward_factor: float
    """Backward work as a multiple of forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpGraph:
    """The ops in the order they ran forward."""

    ops: tuple[Op, ...]
    saved_bytes_per_sample: float
    """Activations kept for backward, per sample."""

    @property
    def param_bytes(self) -> int:
        return sum(op.param_bytes for op in self.ops)

    @property
    def flops_per_sample(self) -> float:
        """Forward and backward."""
        return sum(op.flops_per_sample * (1 + op.backward_factor) for op in self.ops)

    def fingerprint(self) -> str:
        """Changes when the model's structure, sizes or costs change."""
        return digest(self)
