"""`--load MODULE`: modules of the user's own, imported on every rank before the command line is parsed.

Such a module registers what it brings: a codec in `autotune.workloads.plan.codecs.CODECS`, a transport in
`autotune.workloads.plan.choices.TRANSPORTS`, a knob in `autotune.space.knob.KNOBS`, a search method in
`autotune.search.methods.METHODS`. It is found as a workload's "module:factory" is: also in the working directory.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.workloads.errors import SpecError


def load_modules(arguments: Sequence[str]) -> None:
    """Import what `--load` names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--load", action="append", default=[])
    for name in parser.parse_known_args(list(arguments))[0].load:
        _load(name)


def _load(name: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(name)
    except Exception as error:
        raise SpecError(
            f"--load {name}: {type(error).__name__}: {error}: name a module that can be imported from here"
        ) from error
