"""Runs many loops one after the other in the same processes: `python -m tests.loops.worker FOLDER MODES NUMBERS`.

Modes: "plain" is the reference in one process without autotune, "other" the same with sums in another order, "alone" a real
job of one rank, "ranks" a real job under mpirun, "moved" one on another number of ranks that goes on from what "ranks" has
saved. Reads FOLDER/loops.json, and leaves for each loop and rank a file with its
results. A loop that fails ends the process: what it leaves behind could spoil those after it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import torch

from autotune.workloads.errors import SpecError
from tests.loops.description import Loop
from tests.loops.plain_job import PlainJob
from tests.loops.render import render

REAL = ("ranks", "moved", "alone")
LIMIT_S = 60.0
"""A loop that takes longer hangs."""


def main(folder: Path, mode: str, numbers: list[int]) -> None:
    """These loops of the file."""
    loops = [Loop.from_data(data) for data in json.loads((folder / "loops.json").read_text())]
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    os.environ["LOOP_FOLDER"] = str(folder / ("ranks" if mode == "moved" else mode))
    for number in numbers:
        loop = loops[number]
        if mode in REAL:
            os.environ["PART"] = {"ranks": "1", "moved": "2", "alone": ""}[mode] if loop.has("move") else ""
        else:
            _pretend(loop, mode)
        found = run(loop, folder / mode / f"{number}.{rank}.stacks")
        file = result_file(folder, mode, number, rank)
        torch.save(found, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
        if found["error"] is not None and mode in REAL:
            sys.stderr.write(found["error"])
            sys.stderr.flush()
            os._exit(1)


def result_file(folder: Path, mode: str, number: int, rank: int) -> Path:
    """Where a rank leaves what it found."""
    return folder / mode / f"{number}.{rank}.pt"


def run(loop: Loop, stacks: Path) -> dict[str, Any]:
    """The script in a namespace of its own: values logged, state dicts, a refusal or an error."""
    found: dict[str, Any] = {"log": [], "state": {}, "refused": None, "error": None}
    space: dict[str, Any] = {"__name__": "loop"}
    with stacks.open("w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=file)
        try:
            exec(compile(render(loop), f"<loop {loop.seed}>", "exec"), space)
            found |= {"log": [float(value) for value in space["log"]], "state": _flat(space["results"])}
        except SpecError as refusal:
            found["refused"] = str(refusal)
        except Exception:  # noqa: BLE001 - whatever it is, the driver reports it
            found["error"] = traceback.format_exc()
        finally:
            faulthandler.cancel_dump_traceback_later()
            torch.set_default_dtype(torch.float32)
    stacks.unlink()
    return found


def _flat(results: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    items = ((f"{kind}.{name}", value) for kind, state in results.items() for name, value in state.items())
    return {name: value.detach().clone() for name, value in items if torch.is_tensor(value)}


def _pretend(loop: Loop, mode: str) -> None:
    """Replaces autotune by the reference job, and removes the environment of a launcher."""
    os.environ["OMPI_COMM_WORLD_SIZE"] = str(loop.ranks)
    adds_up_apart = not loop.has("buffer", "compiled", "batch_norm", "batch_norm_conv")
    how = {"plain": "", "other": "sliced" if adds_up_apart else "permuted"}[mode]

    def parallelize(*given: Any, **options: Any) -> PlainJob:
        return PlainJob(*given, **options, mode=how)

    stand_in = types.ModuleType("autotune")
    stand_in.__dict__["parallelize"] = parallelize
    sys.modules["autotune"] = stand_in


if __name__ == "__main__":
    for each in sys.argv[2].split(","):
        main(Path(sys.argv[1]), each, [int(number) for number in sys.argv[3].split(",")])
