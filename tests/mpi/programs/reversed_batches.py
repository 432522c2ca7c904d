"""Run a script whose loaders put the samples of each batch in reverse order: the same batches, other rounding.

python reversed_batches.py script.py [its arguments]
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from torch.utils import data


class Reversed(data.DataLoader[Any]):
    def __init__(self, *given: Any, collate_fn: Any, **named: Any) -> None:
        super().__init__(*given, collate_fn=lambda samples: collate_fn(samples[::-1]), **named)


data.DataLoader = Reversed  # type: ignore[misc]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
