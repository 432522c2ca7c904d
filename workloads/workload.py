"""What a workload must offer. The shipped models and a user's own job meet the same protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset


@runtime_checkable
class Workload(Protocol):
    """One training job, the same on every rank; which samples a rank takes is the plan's business, not the workload's.

    A workload may also offer, each on its own:

    - `accuracy(model) -> float`, which `autotune train` reports;
    - `work(dataset)`, a number for each sample (its tokens): work instead of samples is then divided as the split says;
    - `loss_weights(dataset)`, what each sample counts in the loss, where that is not a mean over samples but, say, over tokens;
    - `sync_norm`: true where BatchNorm layers are to take their statistics over all ranks, whatever the plan says;
    - `stages(model)`, modules that are the model when called one after another, where it is to be cut into a pipeline and is no
      `nn.Sequential`;
    - `collate(samples)`, which makes a batch, and `num_workers`, the processes of each rank that read ahead, as for torch's
      DataLoader.
    """

    @property
    def name(self) -> str:
        """What messages call it; files and reports use the name it was asked for by."""

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
