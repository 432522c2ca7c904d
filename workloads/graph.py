"""A model as costs: what each op computes, moves, stores and owns, per sample, and what flows between the ops."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workloads.serial import digest, to_data

_NOT_IN_FINGERPRINT = ("saved_bytes_per_sample", "output_bytes_per_sample", "factor_shapes")
"""Of an op. They came later, and plans that were kept before them are still found by their fingerprint."""
_MAIN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One module of the model, without its children. Costs are of the forward pass: cost(b) = fixed + per_sample · b.

    A module that is called several times is one op, and its costs are those of all calls together.
    """

    name: str
    kind: str
    num_calls: int
    flops_per_sample: float
    fixed_bytes: float
    bytes_per_sample: float
    param_bytes: int
    backward_factor: float
    """Backward work as a multiple of forward."""
    saved_bytes_per_sample: float = 0.0
    """Activations kept for backward that this op was the first to keep."""
    output_bytes_per_sample: float = 0.0
    """What the module returns, all tensors together; of a module with children it is mostly what its last child returns."""
    factor_shapes: tuple[tuple[int, int], ...] = ()
    """Outputs and inputs of the weight matrix of a Linear layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One trainable tensor."""

    name: str
    op: str
    """The module that registered it first, or the nearest one around it that runs."""
    num_bytes: int
    shape: tuple[int, ...] = ()
    """Empty: not noted."""
    kind: str = ""
    """The class of the module that registered it first."""
    also: tuple[str, ...] = ()
    """Other modules that have it as their own: tied, such as a head that is the embedding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """What `target` reads of what `source` made in the forward pass, each tensor once; backward, gradients flow the other way."""

    source: str
    target: str
    bytes_per_sample: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OpGraph:
    """The ops in the order they ran forward: a module after its children."""

    ops: tuple[Op, ...]
    saved_bytes_per_sample: float
    """Activations kept for backward, per sample: the sum over the ops."""
    held_bytes: int = 0
    """Parameters, gradients, optimizer state and buffers: what a rank holds however few its samples. 0: not asked for."""
    parameters: tuple[Parameter, ...] = ()
    """Every trainable parameter once, in the order of `model.named_parameters()`."""
    edges: tuple[Edge, ...] = ()
    """In the order the tensors are read. Empty until `autotune.workloads.dataflow.with_edges` finds them: that takes long."""
    edges_from: str = ""
    """How the edges were found: "export", "fx", or "modules" for no more than the order of the ops."""
    edges_note: str = ""
    """Why a better way was not open."""

    @property
    def param_bytes(self) -> int:
        return sum(op.param_bytes for op in self.ops)

    @property
    def shapes(self) -> dict[str, str]:
        """Of the trained parameters by name, such as "64x3x3x3"."""
        return {parameter.name: "x".join(map(str, parameter.shape)) or "1" for parameter in self.parameters}

    def main_kinds(self) -> tuple[str, ...]:
        """Kinds of layers that own a good part of the parameters each, the largest first."""
        total: dict[str, int] = {}
        for parameter in self.parameters:
            total[parameter.kind] = total.get(parameter.kind, 0) + parameter.num_bytes
        least = _MAIN_SHARE * sum(total.values())
        return tuple(sorted((kind for kind, size in total.items() if kind and size >= least), key=lambda k: -total[k]))

    @property
    def flops_per_sample(self) -> float:
        """Forward and backward."""
        return sum(op.flops_per_sample * (1 + op.backward_factor) for op in self.ops)

    def fingerprint(self) -> str:
        """Changes when the model's structure, sizes or costs change; does not depend on whether edges were asked for."""
        ops = [{key: value for key, value in to_data(op).items() if key not in _NOT_IN_FINGERPRINT} for op in self.ops]
        return digest({"ops": ops, "saved_bytes_per_sample": self.saved_bytes_per_sample})
