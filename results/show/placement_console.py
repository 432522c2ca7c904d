"""A placement in a terminal: groups of modules on devices, and what each decision is worth."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from autotune.results.store.forecast import PlacedGroup
from autotune.results.text.numbers import format_ms, format_percent, format_shares
from autotune.workloads.quantity import format_bytes

_MOST_MODULES = 12


def show_placement(console: Console, groups: Sequence[PlacedGroup], step_s: float) -> None:
    """Groups as branches, their modules as leaves."""
    tree = Tree(
        Text("The placement (predicted): modules, devices, and the step if a group were on all devices instead")
    )
    for group in groups:
        ranks = "+".join(map(str, group.ranks))
        lost = group.step_elsewhere_s / step_s - 1
        branch = tree.add(
            Text(
                f"ranks {ranks} ({group.devices}), samples {format_shares(group.samples)}: "
                f"{format_percent(group.compute_share)} of the arithmetic, {format_bytes(group.param_bytes)} of parameters; "
                f"elsewhere {format_ms(group.step_elsewhere_s)} ms, {100 * lost:+.0f} %"
            )
        )
        for module in group.modules[:_MOST_MODULES]:
            branch.add(Text(module))
        if len(group.modules) > _MOST_MODULES:
            branch.add(Text(f"and {len(group.modules) - _MOST_MODULES} more"))
    console.print(tree)
