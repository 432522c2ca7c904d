"""What a generated loop is made of: plain data, from which the script is rendered and which the shrinker makes smaller."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """An entry of one of the tables, with the options that were drawn for it."""

    name: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """One training loop and the plan it runs by."""

    seed: int
    samples: tuple[int, ...]
    """Of each rank; their sum is the global batch."""
    num_data: int
    epochs: int
    blocks: tuple[Chosen, ...]
    """The model: layers between `enter` and `head`, in the order they are called."""
    optimizer: Chosen
    habits: tuple[Chosen, ...]
    plan: Options
    """Fields of `CommPlan`, and `factors`."""

    @property
    def ranks(self) -> int:
        return len(self.samples)

    @property
    def batch(self) -> int:
        return sum(self.samples)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of everything special, for counts and for conflicts."""
        plan = [f"plan:{self.plan[name]}" for name in ("reducer", "collective", "transport")]
        overlap = ["plan:crosses_steps"] if self.plan.get("crosses_steps") else []
        factors = ["plan:factors"] if self.plan.get("factors") else []
        names = [*(block.name for block in self.blocks), self.optimizer.name, *(habit.name for habit in self.habits)]
        return tuple(dict.fromkeys([*names, *plan, *overlap, *factors]))

    def has(self, *names: str) -> bool:
        """Is any of these features in it?"""
        return not set(names).isdisjoint(self.features)

    def options(self, habit: str) -> Options:
        """The options of a habit that the loop has."""
        return next(chosen.options for chosen in self.habits if chosen.name == habit)

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Loop:
        """What `to_data` gave."""
        lists = {name: tuple(Chosen(**entry) for entry in data[name]) for name in ("blocks", "habits")}
        return cls(**data | lists | {"samples": tuple(data["samples"]), "optimizer": Chosen(**data["optimizer"])})
