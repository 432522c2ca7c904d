"""A decoder-only transformer: equal blocks, a large embedding shared with the head, sequences for samples.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); `large` is GPT-2 small. No dropout, so
that results are exact, and no bias in the projection to queries, keys and values: the gradient of a key's bias is zero
but for rounding, and AdamW would blow that rounding up to a full step.

The text is synthetic: each token is followed by its one fixed successor, or now and then by any token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from autotune.workloads.models.base import DATA_SEED, DTYPES, SupervisedWorkload, batch_or_default, chosen

_SURPRISE = 0.2
_INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class GptSize:
    """One row of the table of sizes."""

    vocabulary: int
    num_tokens: int
    """Length of every sample."""
    width: int
    num_heads: int
    num_blocks: int
    num_samples: int = 1024
    global_batch: int = 64


SIZES = {
    "tiny": GptSize(vocabulary=64, num_tokens=16, width=32, num_heads=2, num_blocks=2),
    "small": GptSize(vocabulary=256, num_tokens=16, width=64, num_heads=4, num_blocks=4),
    "large": GptSize(
        vocabulary=50257, num_tokens=1024, width=768, num_heads=12, num_blocks=12, num_samples=64, global_batch=32
    ),
}


class CausalAttention(nn.Module):
    """Attention without its projections: queries, keys and values side by side in, the attended values out."""

    def __init__(self, num_heads: int) -> None:
        """`num_heads` divides the width."""
        super().__init__()
        self.num_heads = num_heads

    def forward(self, projected: Tensor) -> Tensor:
        """(samples, tokens, 3 * width) -> (samples, tokens, width)."""
        num_samples, num_tokens, _ = projected.shape
        heads = projected.view(num_samples, num_tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads.unbind(0)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Attention and MLP, each normalised at its entrance and added to the stream."""

    def __init__(self, width: int, num_heads: int) -> None:
        """`width` is that of the stream; the MLP is four times as wide inside."""
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width, bias=False),
            CausalAttention(num_heads),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, stream: Tensor) -> Tensor:
        """The stream plus attention, then plus MLP."""
        attended = stream + self.attention(stream)
        outputs: Tensor = attended + self.mlp(attended)
        return outputs


class Embedding(nn.Module):
    """Token plus position."""

    def __init__(self, size: GptSize) -> None:
        """Both tables are learned."""
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.num_tokens, size.width)
        self.positions: Tensor
        self.register_buffer("positions", torch.arange(size.num_tokens), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, tokens) -> (samples, tokens, width)."""
        embedded: Tensor = self.token(tokens) + self.position(self.positions)
        return embedded


class Positions(nn.Module):
    """The positions of an embedding, for token embeddings that are sharded over devices."""

    def __init__(self, embedding: Embedding) -> None:
        """Shares the embedding's table of positions."""
        super().__init__()
        self.position = embedding.position
        self.positions: Tensor
        self.register_buffer("positions", embedding.positions, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embedded tokens, plus position."""
        embedded: Tensor = tokens + self.position(self.positions)
        return embedded


def gpt(size: GptSize) -> nn.Sequential:
    """Embedding, blocks, norm, head; the head's weight is the token embedding's."""
    embedding = Embedding(size)
    head = nn.Linear(size.width, size.vocabulary, bias=False)
    blocks = [Block(size.width, size.num_heads) for _ in range(size.num_blocks)]
    model = nn.Sequential(embedding, *blocks, nn.LayerNorm(size.width), head)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_INIT_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    head.weight = embedding.token.weight
    return model


def synthetic_text(*, vocabulary: int, num_tokens: int, num_samples: int) -> TensorDataset:
    """Sequences and the same sequences one token later."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    successor = torch.randperm(vocabulary, generator=generator)
    text = torch.randint(vocabulary, (num_samples, num_tokens + 1), generator=generator)
    surprise = torch.rand(num_samples, num_tokens + 1, generator=generator) < _SURPRISE
    for i in range(1, num_tokens + 1):
        text[:, i] = torch.where(surprise[:, i], text[:, i], successor[text[:, i - 1]])
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def adamw(model: nn.Module, lr: float) -> Optimizer:
    """AdamW with the moments usual for language models."""
    return AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))


def workload(
    *, size: str = "small", global_batch: int = 0, lr: float = 1e-3, dtype: str = "float32"
) -> SupervisedWorkload:
    """The decoder on synthetic text; a sample is a sequence. `global_batch` 0 is the size's own."""
    row = chosen("size", size, SIZES)
    batch = batch_or_default(global_batch, row.global_batch)
    num_samples = max(row.num_samples, batch)
    return SupervisedWorkload(
        name=f"gpt-{size}",
        global_batch=batch,
        dtype=chosen("dtype", dtype, DTYPES),
        build_model=partial(gpt, row),
        build_dataset=partial(
            synthetic_text, vocabulary=row.vocabulary, num_tokens=row.num_tokens, num_samples=num_samples
        ),
        build_optimizer=partial(adamw, lr=lr),
    )
