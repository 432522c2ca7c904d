"""Models and a training loop for tests: the same on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    """An encoder in the style of Hugging Face's: embeddings, attention with a mask, GELU, layer norms, a pooled head."""

    def __init__(self, words: int = 50, width: int = 16, heads: int = 2, layers: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(12, width)
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.layers = nn.ModuleList(nn.ModuleDict(self._layer(width)) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)
        self.register_buffer("position_ids", torch.arange(12).expand(1, -1), persistent=False)

    @staticmethod
    def _layer(width: int) -> dict[str, nn.Module]:
        names = ("query", "key", "value", "mixed")
        attention: dict[str, nn.Module] = {name: nn.Linear(width, width) for name in names}
        inner = {"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}
        return attention | inner | {"norm_1": nn.LayerNorm(width), "norm_2": nn.LayerNorm(width)}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (1.0 - (ids != 0)[:, None, None, :].to(self.classifier.weight.dtype)) * -1e4
        hidden = self.norm(self.words(ids) + self.places(self.position_ids[:, : ids.size(1)]))
        for layer in self.layers:
            hidden = self._forward(layer, hidden, mask)
        return self.classifier(torch.tanh(self.pooler(hidden[:, 0])))

    def _forward(self, layer: Any, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        split = (*hidden.shape[:2], self.heads, -1)
        query, key, value = (layer[name](hidden).view(split).transpose(1, 2) for name in ("query", "key", "value"))
        scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(hidden.shape)
        hidden = layer["norm_1"](hidden + layer["mixed"](mixed))
        return layer["norm_2"](hidden + layer["down"](functional.gelu(layer["up"](hidden))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    head = [nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), *head)


def multihead() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), nn.Linear(8, 4))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(10, 8)),
    "convolutions": (convolutions, lambda: torch.randn(10, 3, 8, 8)),
    "encoder": (Encoder, lambda: torch.randint(0, 50, (10, 12))),
    "multihead": (multihead, lambda: torch.randn(10, 8)),
}


def train(name: str, device: Any, make_optimizer: Any, *, dtype: torch.dtype = torch.float32, steps: int = 3) -> Any:
    """Losses and the state of the model after some steps, on the CPU."""
    make, draw = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype).to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        inputs, labels = draw(), torch.randint(0, 4, (10,)).to(device)
        inputs = (inputs.to(dtype) if inputs.dtype.is_floating_point else inputs).to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: value.cpu() for key, value in model.state_dict().items()}
