"""The links of a cluster as a tree in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from autotune.results.text.cluster_text import Branch


def show_tree(console: Console, root: Branch) -> None:
    console.print(_tree(root))


def _tree(branch: Branch) -> Tree:
    tree = Tree(Text(branch.label))
    for below in branch.below:
        tree.children.append(_tree(below))
    return tree
