"""Methods of placement search by name. Each judges assignments of one problem until nothing more may be simulated.

A new one is a module and one `register` call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from autotune.workloads.plan.choices import Registry, load

if TYPE_CHECKING:  # the command line lists the methods and simulates nothing
    from autotune.placement.groups.problem import PlacementProblem


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementMethod:
    """How assignments are proposed."""

    name: str
    text: str
    """One line for documentation."""
    searched_by: str
    """"module:function" of a problem and a random generator."""

    def search(self, problem: PlacementProblem, seed: int) -> None:
        """What it judges stays in the problem."""
        run: Callable[[PlacementProblem, Random], None] = load(self.searched_by)
        run(problem, Random(seed))  # noqa: S311 - a search, no secret


PLACEMENT_METHODS: Registry[PlacementMethod] = Registry("placement method")
_HERE = "autotune.placement.groups"
for _name, _text, _where in (
    ("portfolio", "all of the following but the exact one, each from the best so far", "portfolio:portfolio"),
    ("islands", "sets of devices composed along the chain of groups by dynamic programming", "local:islands"),
    (
        "greedy",
        "the heaviest group first, each on its best set; then runs of groups moved while it pays",
        "local:greedy",
    ),
    ("tree", "PUCT tree search, the heaviest group first", "tree_search:tree"),
    ("random", "random assignments: the control, same budget, no guidance", "local:random_assignments"),
    ("exact", "branch and bound: the optimum, for a few groups and sets", "exact:exact"),
):
    PLACEMENT_METHODS.register(PlacementMethod(name=_name, text=_text, searched_by=f"{_HERE}.{_where}"))
