"""The table of layers that models are composed of: each maps `h`, of shape (batch, 8), to another of that shape.

Lines are templates: `{i}` is the position of the block in the model, other names are its options. `t` holds five token
numbers below 20 for each sample, `step` is the number of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A layer, or a way to use layers."""

    share: float
    """How often it is drawn, relative to the others."""
    init: tuple[str, ...]
    forward: tuple[str, ...] = ()
    options: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    forbids: tuple[str, ...] = ()
    """Other features that cannot be in the same loop."""


_NO_COMPLEX = ("Adafactor", "LBFGS", "Muon", "fused", "scaler", "autocast", "clip_value")
_PAIRS = "h = h + {call}.reshape(len(h), 8)"
_NO_LATE_GRADIENTS = ("fused",)
"""torch's fused SGD fails where some momentum buffers are there and others are not yet."""
NORMS = ("batch_norm", "batch_norm_conv")
_NOISE_SIGNS = ("Rprop",)
"""Gradients that are zero but for rounding have no sign to follow."""

BLOCKS: dict[str, Block] = {
    "linear": Block(share=2, init=("self.fc{i} = nn.Linear(8, 8)",), forward=("h = torch.tanh(self.fc{i}(h))",)),
    "mlp": Block(
        share=2,
        init=("self.mlp{i} = nn.Sequential(nn.Linear(8, 16, bias={bias}), nn.GELU(), nn.Linear(16, 8))",),
        forward=("h = h + self.mlp{i}(h)",),
        options={"bias": (True, False)},
    ),
    "conv1d": Block(
        share=1,
        init=("self.conv{i} = nn.Conv1d(1, 4, 3, padding=1)",),
        forward=("h = torch.tanh(self.conv{i}(h.unsqueeze(1))).mean(1)",),
    ),
    "conv2d": Block(
        share=1,
        init=("self.conv{i} = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 1, 1))",),
        forward=(_PAIRS.format(call="self.conv{i}(h.view(-1, 1, 2, 4))"),),
    ),
    "attention": Block(
        share=1,
        init=("self.attend{i} = nn.MultiheadAttention(4, 2, batch_first=True)",),
        forward=("pairs = h.reshape(-1, 2, 4)", _PAIRS.format(call="self.attend{i}(pairs, pairs, pairs)[0]")),
        forbids=_NOISE_SIGNS,
    ),
    "transformer": Block(
        share=1,
        init=(
            "self.layer{i} = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first={first})",
        ),
        forward=(_PAIRS.format(call="self.layer{i}(h.reshape(-1, 2, 4))"),),
        options={"first": (True, False)},
        forbids=_NOISE_SIGNS,
    ),
    "recurrent": Block(
        share=1,
        init=("self.rnn{i} = nn.{kind}(4, 4, batch_first=True)",),
        forward=(_PAIRS.format(call="self.rnn{i}(h.reshape(-1, 2, 4))[0]"),),
        options={"kind": ("LSTM", "GRU")},
    ),
    "tied": Block(
        share=1,
        init=("self.up{i}, self.down{i} = nn.Linear(8, 8), nn.Linear(8, 8)", "self.down{i}.weight = self.up{i}.weight"),
        forward=("h = h + self.down{i}(torch.tanh(self.up{i}(h)))",),
    ),
    "branch": Block(
        share=1.5,
        init=("self.left{i}, self.right{i} = nn.Linear(8, 8), nn.Linear(8, 8)",),
        forward=("h = h + torch.tanh(self.left{i}(h) if step % {every} else self.right{i}(h))",),
        options={"every": (2, 3)},
        forbids=_NO_LATE_GRADIENTS,
    ),
    "rare_branch": Block(
        share=1,
        init=("self.rare{i} = nn.Linear(8, 8)",),
        forward=("if step == {at}:", "    h = h + self.rare{i}(h)"),
        options={"at": (0, 3, 4)},
        forbids=_NO_LATE_GRADIENTS,
    ),
    "unused": Block(share=1, init=("self.unused{i} = nn.Linear(8, 8)",)),
    "frozen": Block(
        share=1,
        init=("self.frozen{i} = nn.Linear(8, 8).requires_grad_(False)",),
        forward=("h = h + torch.tanh(self.frozen{i}(h))",),
    ),
    "half_frozen": Block(
        share=0.5,
        init=("self.partly{i} = nn.Linear(8, 8)", "self.partly{i}.weight.requires_grad_(False)"),
        forward=("h = torch.tanh(self.partly{i}(h))",),
    ),
    "other_order": Block(
        share=1.5,
        init=("self.second{i} = nn.Linear(8, 8)", "self.first{i} = nn.Linear(8, 8)"),
        forward=("h = torch.tanh(self.second{i}(torch.tanh(self.first{i}(h))))", "h = h + self.first{i}(h)"),
    ),
    "called_twice": Block(
        share=1,
        init=("self.again{i} = nn.Linear(8, 8)",),
        forward=("h = torch.tanh(self.again{i}(torch.tanh(self.again{i}(h))))",),
    ),
    "batch_norm": Block(
        share=1.5,
        init=("self.norm{i} = nn.BatchNorm1d(8{rest})",),
        forward=("h = self.norm{i}(h)",),
        options={"rest": ("", ", momentum=None", ", affine=False")},
        forbids=(*_NOISE_SIGNS, "work", "own_loader", "autocast", "compiled"),
    ),
    "batch_norm_conv": Block(
        share=0.5,
        init=("self.image{i} = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 1, 1))",),
        forward=(_PAIRS.format(call="self.image{i}(h.view(-1, 1, 2, 4))"),),
        forbids=(*_NOISE_SIGNS, "work", "own_loader", "autocast", "compiled"),
    ),
    "layer_norm": Block(share=1, init=("self.scale{i} = nn.LayerNorm(8)",), forward=("h = self.scale{i}(h)",)),
    "group_norm": Block(share=0.5, init=("self.group{i} = nn.GroupNorm(2, 8)",), forward=("h = self.group{i}(h)",)),
    "weight_norm": Block(
        share=0.5,
        init=("self.normed{i} = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",),
        forward=("h = torch.tanh(self.normed{i}(h))",),
    ),
    "embedding": Block(
        share=1, init=("self.words{i} = nn.Embedding(20, 8)",), forward=("h = h + 0.3 * self.words{i}(t).mean(1)",)
    ),
    "embedding_bag": Block(
        share=0.7,
        init=("self.bag{i} = nn.EmbeddingBag(20, 8, mode='{mode}')",),
        forward=("h = h + 0.3 * self.bag{i}(t)",),
        options={"mode": ("mean", "sum")},
    ),
    "sparse": Block(
        share=1.2,
        init=("self.sparse{i} = nn.{kind}(20, 8, sparse=True)",),
        forward=("h = h + 0.3 * self.sparse{i}(t).reshape(len(h), -1, 8).mean(1)",),
        options={"kind": ("Embedding", "EmbeddingBag")},
        forbids=("LBFGS", "autocast", "averaged_model"),
    ),
    "complex": Block(
        share=0.8,
        init=("self.wave{i} = nn.Parameter(torch.randn(8, 8, dtype=torch.cdouble) * 0.3)",),
        forward=("h = h + torch.tanh((h.to(torch.cdouble) @ self.wave{i}).abs().add(0.1))",),
        forbids=_NO_COMPLEX,
    ),
    "bf16": Block(
        share=0.5,
        init=("self.low{i} = nn.Linear(8, 8).to(torch.{kind})",),
        forward=("h = h + torch.tanh(self.low{i}(h.to(torch.{kind})).to(h.dtype))",),
        options={"kind": ("bfloat16", "float16")},
        forbids=(
            "LBFGS",
            "Rprop",
            "NormSGD",
            "autocast",
            "scaler",
            "Adafactor",
            "Muon",
            "ASGD",
            "fused",
            "buffer",
            *NORMS,
        ),
    ),
    "own_parameter": Block(
        share=1,
        init=("self.gain{i} = nn.Parameter(torch.ones(8))", "self.shift{i} = nn.Parameter(torch.zeros(()))"),
        forward=("h = h * self.gain{i} + self.shift{i}",),
    ),
    "parameter_list": Block(
        share=0.5,
        init=("self.mats{i} = nn.ParameterList([torch.randn(8, 8) * 0.3 for _ in range(3)])",),
        forward=("for mat in self.mats{i}:", "    h = torch.tanh(h @ mat)"),
    ),
    "buffer": Block(
        share=0.5,
        init=("self.register_buffer('passes{i}', torch.zeros(()))",),
        forward=("self.passes{i} += 1.0", "h = h + 0.01 * self.passes{i}"),
        forbids=("LBFGS", "recompute"),
    ),
    "recompute": Block(
        share=1,
        init=("self.kept{i} = nn.Sequential(nn.Linear(8, 8), nn.Tanh())",),
        forward=("h = h + checkpoint(self.kept{i}, h, use_reentrant={reentrant})",),
        options={"reentrant": (True, False)},
        forbids=("compiled",),
    ),
}
