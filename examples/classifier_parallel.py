"""Classify sequences of unequal length by a small Transformer, in the style of Hugging Face's no-trainer examples.

    python classifier.py                             # one process
    mpirun -n 2 python classifier_parallel.py        # two ranks, as plan.json in this folder says

`diff classifier.py classifier_parallel.py` shows what autotune changes: five lines. Both train the same model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import autotune
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler

PADDING, NUM_CLASSES, NUM_TOKENS, WIDTH, LONGEST = 0, 3, 61, 16, 24
Sample = tuple[Tensor, int]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16, help="sequences of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=403, help="sequences to train on")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=5, help="steps until the learning rate is reached")
    parser.add_argument("--every", type=int, default=10, help="steps from one evaluation and checkpoint to the next")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--autocast", action="store_true", help="compute in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def sequences(num_samples: int, seed: int) -> list[Sample]:
    """Tokens, and the third of the vocabulary that half of them come from."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randint, generator=generator)
    samples = []
    for _ in range(num_samples):
        length, label = int(draw(5, LONGEST + 1, ())), int(draw(NUM_CLASSES, ()))
        tokens = draw(1, NUM_TOKENS, (length,))
        typical = draw(1 + 20 * label, 21 + 20 * label, (length,))
        samples.append((torch.where(draw(2, (length,)) == 1, typical, tokens), label))
    return samples


def pad(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    tokens = nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True, padding_value=PADDING)
    return tokens, torch.tensor([label for _, label in samples])


class Shuffled(Sampler[int]):
    """All samples, in an order drawn from seed and epoch; goes on from a checkpoint inside an epoch."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed, self.epoch, self.position = num_samples, seed, 0, 0

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1000 * (self.seed + 1) + self.epoch)
        for index in torch.randperm(self.num_samples, generator=generator)[self.position :].tolist():
            self.position += 1
            yield index

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, WIDTH, padding_idx=PADDING)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        is_padding = tokens == PADDING
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=is_padding)
        counts = (~is_padding).unsqueeze(-1).to(hidden.dtype)
        return self.head((hidden * counts).sum(1) / counts.sum(1))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Biases and norms do not decay."""
    return [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def lr_factor(warmup: int, num_steps: int, step: int) -> float:
    return min((step + 1) / (warmup + 1), max(num_steps - step, 0) / (num_steps - warmup))


@torch.no_grad()
def evaluate(model: nn.Module, batches: DataLoader[Any]) -> float:
    """The share of sequences that are classified correctly."""
    model.eval()
    correct = count = 0
    for tokens, labels in batches:
        correct += int((model(tokens).argmax(-1) == labels).sum())
        count += len(labels)
    model.train()
    return correct / count


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
    train, valid = sequences(args.samples, seed=1), sequences(100, seed=2)
    order = Shuffled(len(train), args.seed)
    loader = DataLoader(train, args.batch, sampler=order, collate_fn=pad)
    valid_loader = DataLoader(valid, args.batch, collate_fn=pad)
    steps_per_epoch = -(-len(loader) // args.accumulate)
    num_steps = args.epochs * steps_per_epoch

    model = Classifier().to(getattr(torch, args.dtype))
    optimizer = AdamW(parameter_groups(model), lr=args.lr)
    schedule = LambdaLR(optimizer, partial(lr_factor, args.warmup, num_steps))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "order": order}
    job = parts["order"] = autotune.parallelize(model, optimizer, "plan.json")  # its state has the order
    step = load(parts, args.resume) if args.resume else 0

    for epoch in range(step // steps_per_epoch, args.epochs):
        order.set_epoch(epoch)
        first = step % steps_per_epoch * args.accumulate  # above 0 in an epoch that is resumed
        for number, (tokens, labels) in enumerate(job.batches(loader), first):
            window = min(args.accumulate, len(loader) - number // args.accumulate * args.accumulate)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                loss = functional.cross_entropy(model(tokens), labels)
            (loss / window).backward()
            if number % args.accumulate < window - 1:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            is_due = step % args.every == 0 or step == num_steps
            accuracy = evaluate(model, valid_loader) if is_due else None
            if is_due and job.rank == 0:
                save(parts, step)
                sys.stdout.write(f"step {step}: accuracy {accuracy:.3f}\n")
    job.close()


if __name__ == "__main__":
    main()
