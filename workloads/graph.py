"""A model as costs: arithmetic, traffic, activations and parameters of each op, per sample, and the tensors between ops."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workloads.serial import digest, to_data

_NOT_IN_FINGERPRINT = ("saved_bytes_per_sample", "output_bytes_per_sample", "factor_shapes")
"""Fields of an op that were added later: without them, stored plans keep their fingerprint."""
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
    """Activations saved for backward by this op first."""
    output_bytes_per_sample: float = 0.0
    """Output tensors of the module; of a module with children mostly those of its last child."""
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
    """Empty: not recorded."""
    kind: str = ""
    """The class of the module that registered it first."""
    also: tuple[str, ...] = ()
    """Other modules with the same tensor: tied, such as a head and an embedding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """Tensors made by `source` and read by `target` in forward, each once; in backward, gradients flow in reverse."""

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
    """Parameters, gradients, optimizer state and buffers: independent of the samples. 0: not measured."""
    parameters: tuple[Parameter, ...] = ()
    """Every trainable parameter once, in the order of `model.named_parameters()`."""
    edges: tuple[Edge, ...] = ()
    """In the order the tensors are read. Empty until `autotune.workloads.dataflow.with_edges` finds them, which takes long."""
    edges_from: str = ""
    """How the edges were found: "export", "fx", or "modules" for no more than the order of the ops."""
    edges_note: str = ""
    """Why a better method failed."""

    @property
    def param_bytes(self) -> int:
        return sum(op.param_bytes for op in self.ops)

    @property
    def shapes(self) -> dict[str, str]:
        """Of the trained parameters by name, such as "64x3x3x3"."""
        return {parameter.name: "x".join(map(str, parameter.shape)) or "1" for parameter in self.parameters}

    def main_kinds(self) -> tuple[str, ...]:
        """Kinds of layers with a large share of the parameters, the largest first."""
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
        """Changes when the model's structure, sizes or costs change; does not depend on the edges."""
        ops = [{key: value for key, value in to_data(op).items() if key not in _NOT_IN_FINGERPRINT} for op in self.ops]
        return digest({"ops": ops, "saved_bytes_per_sample": self.saved_bytes_per_sample})
