"""The protocol of a workload, for the shipped models and for a user's own job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from autotune.workloads.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset


class Described(Protocol):
    """What a prediction needs of a workload: a model has it, and so has an op graph."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step, over all ranks together."""

    @property
    def min_samples(self) -> int:
        """Fewest samples a rank may be given."""


@runtime_checkable
class Workload(Protocol):
    """One training job, the same on every rank; the plan determines which samples a rank takes.

    A workload may also have any of these:

    - `accuracy(model) -> float`, which `autotune train` reports;
    - `work(dataset)`, a number for each sample (its tokens): work instead of samples is then divided as the split says;
    - `loss_weights(dataset)`, what each sample counts in the loss, where that is not a mean over samples but, say, over tokens;
    - `sync_norm`: true where BatchNorm layers are to take their statistics over all ranks, whatever the plan says;
    - `stages(model)`, modules that are the model when called one after another, for a model that is to be cut into a pipeline and is no
      `nn.Sequential`;
    - `collate(samples)`, which makes a batch, and `num_workers`, the processes of each rank that read ahead, as for torch's
      DataLoader;
    - `clip_norm`: the norm that the gradient of all parameters is clipped to before each optimizer step;
    - `accumulate`: the passes in which a rank takes its samples of a step; gradients are exchanged in the last one only;
    - `lookups(batch)`, for a model whose embedding tables may be on servers: what each `nn.EmbeddingBag` is called with, (ids,
      offsets), by the name of its module;
    - `autocast`: "bfloat16" or "float16", the dtype of torch.autocast around the forward pass and the loss.
    """

    @property
    def name(self) -> str:
        """Its name in messages; files and reports use the name that it was loaded by."""

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step, over all ranks together. Tuning never changes it, so the learning rate keeps its meaning."""

    @property
    def min_samples(self) -> int:
        """Fewest samples a rank may be given (1; 2 where BatchNorm needs two values per channel)."""

    def model(self) -> nn.Module:
        """A freshly initialised model. The caller seeds torch first, so every rank builds the same one."""

    def dataset(self) -> Dataset[Any]:
        """A map-style data set, the same on every rank."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss as the **mean over the samples of the batch**: the weights b_i/B that make uneven batches exact rely on it.

        Where it is a mean weighted by something else, `loss_weights` must say so.
        """

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer to train the model with."""


AUTOCAST_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """Options of the training loop beyond one forward and backward pass per rank and step."""

    clip_norm: float | None = None
    """The largest norm of the gradient of all parameters; None: gradients are not clipped."""
    accumulate: int = 1
    """Passes per optimizer step."""
    autocast: str | None = None
    """The dtype of torch.autocast; None: none."""
    min_samples: int = 1
    """Fewest samples of a pass."""

    @property
    def settings(self) -> dict[str, float | str]:
        """The options that differ from a plain loop, by name."""
        given = {"clip_norm": self.clip_norm, "accumulate": self.accumulate, "autocast": self.autocast}
        return {
            name: value for name, value in given.items() if value is not None and (name, value) != ("accumulate", 1)
        }

    def passes(self, num_samples: int) -> tuple[int, ...]:
        """Samples of each pass of a rank: as equal as possible, the first have one more. A rank with too few samples for
        `accumulate` passes of `min_samples` has fewer passes; a rank without samples has none.
        """
        if num_samples == 0:
            return ()
        number = max(min(self.accumulate, num_samples // self.min_samples), 1)
        fewest, more = divmod(num_samples, number)
        return (fewest + 1,) * more + (fewest,) * (number - more)


PLAIN_LOOP = Loop()


def loop_of(workload: Described) -> Loop:
    """The loop that a workload states; a SpecError if it is invalid."""
    check_loop(workload)
    options = {name: getattr(workload, name, None) for name in ("clip_norm", "accumulate", "autocast")}
    stated = {name: value for name, value in options.items() if value is not None}
    return Loop(min_samples=max(workload.min_samples, 1), **stated)


def check_loop(workload: Described) -> None:
    """Refuse an invalid clip_norm, accumulate or autocast."""
    batch = workload.global_batch
    rules = {
        "clip_norm": (_is_norm, "it must be a number above 0"),
        "accumulate": (
            lambda value: _is_count(value, batch),
            f"it must be a whole number from 1 to the batch, {batch}",
        ),
        "autocast": (lambda value: value in AUTOCAST_DTYPES, f"it must be one of {', '.join(AUTOCAST_DTYPES)}"),
    }
    for name, (is_right, rule) in rules.items():
        value = getattr(workload, name, None)
        if value is not None and not is_right(value):
            raise SpecError(f"workload {workload.name!r} states {name} = {value!r}: {rule}, or left out")


def check_no_stages(name: str, loop: Loop) -> None:
    """Refuse pipeline stages for a loop that they do not run."""
    if loop.settings:
        listed = ", ".join(f"{key} = {value!r}" for key, value in loop.settings.items())
        raise SpecError(
            f"workload {name!r} states {listed}, but a plan with pipeline stages has micro-batches of its own, and no rank of "
            "it has all gradients: use a plan without stages"
        )


def _is_norm(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
