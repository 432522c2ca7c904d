"""A workload that one rank leaves: `--workload leaving:factory --set place=model --set how=exit --set rank=1`.

LEAVE_AT_IMPORT="HOW RANK" lets that rank leave while this module is imported, which is before any set-up.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

OWN_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK") or "0")


def leave(how: str, rank: int) -> None:
    """Leave, if this is that rank."""
    if rank != OWN_RANK:
        return
    sys.stderr.write(f"leaving at {time.time()}\n")
    sys.stderr.flush()
    if how == "exception":
        raise ValueError("boom")
    if how == "exit":
        sys.exit(3)
    if how == "exit-0":
        sys.exit()
    if how == "os-exit":
        os._exit(5)
    if how == "os-exit-0":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "hang":
        time.sleep(3600)


class Leaving:
    """A tiny regression that `rank` leaves at `place`: when it is made, or some times after it first came to another place."""

    name = "leaving"
    global_batch = 16
    min_samples = 1

    def __init__(self, place: str, how: str, rank: int) -> None:
        self._place, self._how, self._rank = place, how, rank
        self._times = 0
        self._time = 12 if how == "hang" else 3  # rank 0 runs some steps while it sets up
        self.reach("factory")

    def reach(self, place: str) -> None:
        if place == self._place:
            self._times += 1
            if self._times == (1 if place in {"factory", "capture"} else self._time):
                leave(self._how, self._rank)

    def model(self) -> nn.Module:
        self.reach("capture")
        self.reach("model")
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def dataset(self) -> Samples:
        return Samples(self)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self.reach("step")
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)


class Samples(Dataset[Any]):
    """Random samples; reading them may be the place."""

    def __init__(self, owner: Leaving) -> None:
        self._owner = owner
        generator = torch.Generator().manual_seed(0)
        self._x, self._y = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 0:
            self._owner.reach("data")
        return self._x[index], self._y[index]


def factory(place: str = "step", how: str = "exit", rank: int = 1) -> Leaving:
    return Leaving(place, how, rank)


if "LEAVE_AT_IMPORT" in os.environ:
    HOW, RANK = os.environ["LEAVE_AT_IMPORT"].split()
    leave(HOW, int(RANK))
