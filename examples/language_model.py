"""A causal language model: a small decoder-only Transformer, in the style of Hugging Face's no-trainer examples.

    python language_model.py                             # one process
    mpirun -n 2 python language_model_parallel.py        # two ranks, as plan.json in this folder says

`diff language_model.py language_model_parallel.py` shows what autotune changes: five lines. Both train the same model. The loss
is a mean over tokens, and sentences have unequal numbers of them: `loss_weights` says so.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler

WIDTH, NUM_HEADS, NUM_BLOCKS, LONGEST = 16, 2, 2, 40
NO_TARGET = -100
NOUNS, VERBS = ("dog", "cat", "bird", "child", "house", "tree"), ("sees", "likes", "finds", "follows")
ADJECTIVES, WORDS_BETWEEN = ("small", "red", "old", "quick"), ("and", "but", "while")
VOCABULARY = ("<begin>", ".", "the", "a", *NOUNS, *VERBS, *ADJECTIVES, *WORDS_BETWEEN)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16, help="sentences of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=403, help="sentences to train on")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--warmup", type=int, default=5, help="steps until the learning rate is reached")
    parser.add_argument("--every", type=int, default=10, help="steps from one evaluation and checkpoint to the next")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--autocast", action="store_true", help="compute in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def sentence(draw: random.Random) -> list[str]:
    """One to four clauses such as `the small dog sees a tree`."""
    words = ["<begin>"]
    for _ in range(draw.randint(1, 4)):
        words += [draw.choice(WORDS_BETWEEN)] if len(words) > 1 else []
        for last in (VERBS, ()):
            words += [draw.choice(("the", "a")), *draw.sample(ADJECTIVES, draw.randint(0, 1)), draw.choice(NOUNS)]
            words += [draw.choice(last)] if last else []
    return [*words, "."]


def sentences(num_samples: int, seed: int) -> list[Tensor]:
    draw = random.Random(seed)  # noqa: S311 - no secret
    numbers = {word: number for number, word in enumerate(VOCABULARY)}
    return [torch.tensor([numbers[word] for word in sentence(draw)]) for _ in range(num_samples)]


def pad(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens, and those that follow them."""
    padded = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return padded([text[:-1] for text in texts]), padded([text[1:] for text in texts], padding_value=NO_TARGET)


class Shuffled(Sampler[int]):
    """All samples, in an order drawn from seed and epoch."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed, self.epoch = num_samples, seed, 0

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1000 * (self.seed + 1) + self.epoch)
        yield from torch.randperm(self.num_samples, generator=generator).tolist()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in self.project(self.norm1(x)).chunk(3, -1)
        ]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.shrink(functional.gelu(self.grow(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(VOCABULARY), WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(VOCABULARY), bias=False)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(hidden)))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Biases and norms do not decay."""
    return [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def lr_factor(warmup: int, num_steps: int, step: int) -> float:
    return min((step + 1) / (warmup + 1), max(num_steps - step, 0) / (num_steps - warmup))


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Over the tokens that are there."""
    logits = model(tokens).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten(), ignore_index=NO_TARGET, reduction=reduction)


@torch.no_grad()
def evaluate(model: nn.Module, batches: DataLoader[Any]) -> float:
    """Perplexity."""
    model.eval()
    total, count = 0.0, 0
    for tokens, targets in batches:
        total += float(loss_of(model, tokens, targets, "sum"))
        count += int((targets != NO_TARGET).sum())
    model.train()
    return math.exp(total / count)


def save(parts: dict[str, Any], step: int) -> None:
    kept = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
    torch.save(kept, "saving.pt")
    Path("saving.pt").replace(f"step-{step}.pt")  # a file of this name is complete


def load(parts: dict[str, Any], path: Path) -> int:
    kept = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(kept[name])
    return int(kept["step"])


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    train, valid = sentences(args.samples, seed=1), sentences(100, seed=2)
    order = Shuffled(len(train), args.seed)
    loader = DataLoader(train, args.batch, sampler=order, collate_fn=pad)
    valid_loader = DataLoader(valid, args.batch, collate_fn=pad)
    steps_per_epoch = -(-len(loader) // args.accumulate)
    num_steps = args.epochs * steps_per_epoch

    model = LanguageModel().to(getattr(torch, args.dtype))
    optimizer = AdamW(parameter_groups(model), lr=args.lr)
    schedule = LambdaLR(optimizer, partial(lr_factor, args.warmup, num_steps))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step = load(parts, args.resume) if args.resume else 0

    for epoch in range(step // steps_per_epoch, args.epochs):
        order.set_epoch(epoch)
        first = step % steps_per_epoch * args.accumulate  # batches before were taken before the checkpoint
        for number, batch in enumerate(loader):
            if number < first:
                continue
            window = min(args.accumulate, len(loader) - number // args.accumulate * args.accumulate)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                loss = loss_of(model, *batch)
            (loss / window).backward()
            if number % args.accumulate < window - 1:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            is_due = step % args.every == 0 or step == num_steps
            perplexity = evaluate(model, valid_loader) if is_due else None
            if is_due:
                save(parts, step)
                sys.stdout.write(f"step {step}: perplexity {perplexity:.3f}\n")


if __name__ == "__main__":
    main()
