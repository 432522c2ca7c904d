"""A model in the style of Hugging Face's: a config, batches and outputs by name, a mask, a head tied to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

IGNORED = -100
"""The label of words that the loss leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes of a model."""

    vocab_size: int = 50
    hidden_size: int = 16
    num_hidden_layers: int = 1
    num_attention_heads: int = 2
    max_position_embeddings: int = 8


class Output(dict[str, Tensor]):
    """As transformers' ModelOutput: fields by key and by attribute."""

    __getattr__ = dict.__getitem__


class Layer(nn.Module):
    """Attention with a mask, then two linear layers, each followed by a residual sum and a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        shape = (*hidden_states.shape[:2], self.num_heads, -1)
        query, key, value = (
            part(hidden_states).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        mixed = mixed.transpose(1, 2).reshape(hidden_states.shape)
        hidden_states = self.attention_norm(hidden_states + self.output(mixed))
        return self.norm(hidden_states + self.down(functional.gelu(self.up(hidden_states))))


class ForMaskedWords(nn.Module):
    """An encoder that predicts words, with the weights of its embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=1e-12)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.transform, self.head_norm = (
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.LayerNorm(config.hidden_size),
        )
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = self.words.weight
        self.register_buffer(
            "position_ids", torch.arange(config.max_position_embeddings).expand(1, -1), persistent=False
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.words.weight.dtype

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Output:
        hidden = self.norm(self.words(input_ids) + self.places(self.position_ids[:, : input_ids.size(1)]))
        mask = (1.0 - attention_mask[:, None, None, :].to(self.dtype)) * torch.finfo(self.dtype).min
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask)
        logits = self.decoder(self.head_norm(functional.gelu(self.transform(hidden))))
        if labels is None:
            return Output(logits=logits)
        return Output(
            loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED), logits=logits
        )


class Sentences(Dataset[dict[str, Tensor]]):
    """Random words, some of them padding, of which every other one is to be predicted."""

    def __init__(self, num_samples: int = 96, length: int = 6) -> None:
        generator = torch.Generator().manual_seed(0)
        self._words = torch.randint(1, 50, (num_samples, length), generator=generator)
        self._words[::3, 4:] = 0

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self._words[index]
        labels = words.clone()
        labels[1::2] = IGNORED
        return {"input_ids": words, "attention_mask": (words != 0).long(), "labels": labels}


class MaskedWordsJob:
    """Trains the model; every sample counts alike, so that a split of the batch does not change the loss."""

    name, global_batch, min_samples, num_workers, collate = "transformer", 12, 1, 0, None

    def model(self) -> nn.Module:
        return ForMaskedWords(Config()).double()

    def dataset(self) -> Any:
        return Sentences()

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch).loss

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
