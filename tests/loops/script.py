"""A script in the making: lines by where they stand. Habits add lines, or put a line around those that are there."""

from __future__ import annotations

from tests.loops.description import Loop

SLOTS = (
    *("imports", "classes", "setup", "after_model", "after_optimizer", "job_start", "batch_start", "zero", "forward"),
    *("after_loss", "backward", "gradients", "step", "after_step", "batch_end", "epoch_end", "end"),
)


def indented(lines: list[str]) -> list[str]:
    """One level deeper."""
    return [f"    {line}" if line else "" for line in lines]


class Script:
    """Lines by slot; the names of models and optimizers that the job is given."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.slots: dict[str, list[str]] = {slot: [] for slot in SLOTS}
        self.models, self.optimizers = ["model"], ["optimizer"]
        self.schedulers: list[str] = []
        self.init: list[str] = []
        self.body: list[str] = []
        """Of the model's forward, until the head."""
        self.batch_arguments: list[str] = []
        self.saved: list[str] = []
        """Names of more objects with a state dict, to be compared at the end."""
        self.source = "data"
        """What batches are asked of."""
        self.kept_batches = False
        self.zero_after_step = False

    def add(self, slot: str, *lines: str) -> None:
        """After what is there."""
        self.slots[slot] += lines

    def put(self, slot: str, *lines: str) -> None:
        """Instead of what is there."""
        self.slots[slot] = list(lines)

    def around(self, slot: str, line: str) -> None:
        """A compound statement with what is there as its body."""
        if self.slots[slot]:
            self.slots[slot] = [line, *indented(self.slots[slot])]

    def replace(self, slot: str, old: str, new: str) -> None:
        """In every line of a slot."""
        self.slots[slot] = [line.replace(old, new) for line in self.slots[slot]]
