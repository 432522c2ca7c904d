"""Starts the processes that run loops: references in single processes, jobs under mpirun, again after one has failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path

import torch

from tests.loops.compare import has_local_norms
from tests.loops.description import Loop
from tests.loops.plans import moved_to
from tests.loops.worker import LIMIT_S, REAL, result_file
from tests.mpi.launch import ROOT, start

REFERENCES = ("plain", "other")
_START_S = 60.0


def run_all(folder: Path, loops: Sequence[Loop], *, restarts: int) -> dict[int, str]:
    """Everything that a verdict needs, as files in `folder`; the output of jobs that ended early, by the number of the loop.

    All loops have the same number of ranks. Loops after the one that failed when no restart was left are not run.
    """
    for mode in (*REFERENCES, *REAL):
        (folder / mode).mkdir(parents=True)
    (folder / "loops.json").write_text(json.dumps([loop.to_data() for loop in loops]))
    numbers = list(range(len(loops)))
    references = _reference(folder, ",".join(REFERENCES), numbers)
    try:
        texts = _run_ranks(folder, "ranks", loops[0].ranks, numbers, restarts)
        numbers = numbers[: max(texts) + 1] if len(texts) > restarts else numbers
        texts |= _run_moved(folder, loops[: len(numbers)], texts)
        _run_ranks(folder, "alone", 1, [number for number in numbers if not has_local_norms(loops[number])])
        _, err = references.communicate(timeout=_START_S + LIMIT_S * len(loops))
        if references.returncode:
            raise RuntimeError(f"the reference runs ended early:\n{err}")
    finally:
        references.kill()
    return texts


def _reference(folder: Path, modes: str, numbers: Sequence[int]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.loops.worker", str(folder), modes, _listed(numbers)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _run_ranks(folder: Path, mode: str, ranks: int, numbers: Sequence[int], restarts: int = 1000) -> dict[int, str]:
    """As many launches as it takes: each ends at the first loop that fails."""
    texts: dict[int, str] = {}
    left = list(numbers)
    while left and len(texts) <= restarts:
        text = _launch(folder, mode, ranks, left)
        while left and _is_complete(folder, mode, left[0], ranks):
            left.pop(0)
        if left:
            texts[left.pop(0)] = text
    return texts


def _run_moved(folder: Path, loops: Sequence[Loop], failed: Container[int]) -> dict[int, str]:
    """The second part of loops that go on with another number of ranks, where the first has left a checkpoint."""
    texts: dict[int, str] = {}
    for ranks in (2, 3, 4):
        moved = [number for number, loop in enumerate(loops) if moved_to(loop) == ranks and number not in failed]
        kept = [number for number in moved if any((folder / "ranks").glob(f"checkpoint-{loops[number].seed}-*"))]
        texts |= _run_ranks(folder, "moved", ranks, kept) if kept else {}
    return texts


def _is_complete(folder: Path, mode: str, number: int, ranks: int) -> bool:
    """All ranks came through it."""
    found = [result_file(folder, mode, number, rank) for rank in range(ranks)]
    return all(file.exists() and torch.load(file, weights_only=False)["error"] is None for file in found)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _launch(folder: Path, mode: str, ranks: int, numbers: Sequence[int]) -> str:
    """One job, until the end or until a loop fails; its stderr, and the stacks of what hung."""
    if mode == "alone":
        job = _reference(folder, mode, numbers)
    else:
        job = start(ranks, "-m", "tests.loops.worker", str(folder), mode, _listed(numbers), cwd=folder)
    try:
        _, err = job.communicate(timeout=_START_S + LIMIT_S + 5 * len(numbers))
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        _, err = job.communicate()
        err = f"the job of {ranks} ranks did not end\n{err}"
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    stacks = [file for file in sorted((folder / mode).glob("*.stacks")) if file.stat().st_size]
    hung = [f"rank {file.suffixes[0][1:]} after {LIMIT_S:.0f} s:\n{file.read_text()}" for file in stacks]
    for file in (folder / mode).glob("*.stacks"):
        file.unlink()
    last = "a loop hung" if hung else "the job ended early"
    return "\n".join([err, *hung, last])
