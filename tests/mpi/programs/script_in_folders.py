"""Run a script's main() in each of several folders, one after another in the same job, and leave there what each rank prints.

mpirun -n 2 python script_in_folders.py script.py folder,folder [arguments of the script]

FOLDER/rank-0.json holds the stdout of rank 0 in that folder, and the result of each of its evaluations.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from autotune.runtime.control.start import this_launcher


def script_at(path: str, evaluated: list[float]) -> Any:
    """A module that records its evaluations."""
    spec = importlib.util.spec_from_file_location("script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    evaluate = module.evaluate

    def noted(*given: Any) -> float:
        evaluated.append(evaluate(*given))
        return evaluated[-1]

    module.evaluate = noted
    return module


def main() -> None:
    _, script, folders, *arguments = sys.argv
    sys.argv = [script, *arguments]
    for folder in folders.split(","):
        os.chdir(folder)
        evaluated: list[float] = []
        with redirect_stdout(io.StringIO()) as output:
            script_at(script, evaluated).main()
        found = {"output": output.getvalue(), "evaluated": evaluated}
        Path(f"rank-{this_launcher().rank}.json").write_text(json.dumps(found))


main()
