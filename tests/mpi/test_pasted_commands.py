"""Every command that a report or a message prints works when it is pasted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import FLAGS, MPIRUN, ROOT, autotune, refused

QUICK = ("--trials", "1", "--steps", "1", "--rounds", "1")
OWN = ("--workload", "own_workload:factory", "--set", "width=32", "--set", "lr=0.01")
NAMED = "own_workload:factory,lr=0.01,width=32"
SHORTER = {"sweep": QUICK, "train": ("--steps", "2", "--rounds", "1")}
"""Additional arguments of a pasted command, so that it takes seconds."""
_PRINTED = re.compile(r"^ +((?:mpirun|autotune) .+?) *$|`((?:mpirun|autotune) [^`]+)`|Measure it: (.+)$", re.MULTILINE)

pytestmark = pytest.mark.mpi


def printed(text: str) -> list[str]:
    """The commands in an output, each once."""
    return list(dict.fromkeys(next(filter(None, found)) for found in _PRINTED.findall(text)))


def paste(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a printed command, with the flags that root needs, and with less to do."""
    words = shlex.split(line)
    verb = words[words.index("autotune") + 1]
    words += SHORTER.get(verb, ())
    if words[0] == "mpirun":
        words = [str(MPIRUN), *words[1:3], *FLAGS, *words[3:]]
    at = words.index("autotune")
    words[at : at + 1] = [sys.executable, "-m", "autotune"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def works(line: str, folder: Path) -> str:
    done = paste(line, folder)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return paste(shlex.join(["autotune", *arguments]), folder)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished sweep of a user's workload with options, on two of a cluster's four devices, and what it printed."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "own_workload.py").write_text((ROOT / "examples" / "own_workload.py").read_text())
    done = autotune(2, "sweep", *OWN, "--cluster", "mixed4", *QUICK, cwd=folder)
    assert done.code == 0, done.err
    return folder, done.out


@pytest.mark.slow
def test_the_commands_of_a_report_work_and_a_report_shown_again_has_the_same(swept: tuple[Path, str]) -> None:
    folder, out = swept
    train, report = printed(out)
    options = "--workload own_workload:factory --set lr=0.01 --set width=32 --cluster mixed4"
    assert train == f"mpirun -n 2 autotune train {options} --plan best"
    assert "2 steps in" in works(train, folder)
    assert printed(works(report, folder)) == [train, report]
    study = shlex.split(report)[2]
    works(shlex.join(["autotune", "compare", study, study]), folder)


@pytest.mark.slow
def test_the_names_that_files_have_are_taken_too(swept: tuple[Path, str]) -> None:
    folder, _ = swept
    works(f"mpirun -n 2 autotune train --workload {NAMED} --cluster mixed4-first2", folder)
    for names in (("own_workload:factory", "mixed4"), (NAMED, "mixed4-first2")):
        assert NAMED in works(shlex.join(["autotune", "best", "--workload", names[0], "--cluster", names[1]]), folder)


@pytest.mark.slow
def test_an_unfinished_sweep_prints_how_to_resume(swept: tuple[Path, str]) -> None:
    folder, _ = swept
    (kept,) = folder.glob("results/data/own_workload*/mixed4-first2/comparison.json")
    kept.rename(kept.with_suffix(".away"))
    lines = printed(alone(folder, "report").stdout)
    assert [line for line in lines if " sweep " in line] == [lines[1]]
    assert "What was compared" in works(lines[1], folder)


@pytest.mark.slow
def test_the_message_without_a_stored_plan_makes_one(tmp_path: Path) -> None:
    """On this machine, without a cluster named, in another results folder."""
    options = ("--workload", "mlp-tiny", "--set", "global_batch=16", "--results", "elsewhere")
    train = ("train", *options, "--steps", "2", "--rounds", "1")
    refusal = autotune(2, *train, cwd=tmp_path)
    refused(refusal, "no best plan", "'this-machine-x2'")
    (sweep,) = printed(refusal.err)
    assert sweep == (
        "mpirun -n 2 autotune sweep --workload mlp-tiny --set global_batch=16 --cluster this-machine --results elsewhere"
    )
    commands = printed(works(sweep, tmp_path))
    assert commands[0] == f"{sweep.replace(' sweep ', ' train ').replace(' --results', ' --plan best --results')}"
    for line in commands:
        works(line, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("best", "--workload", "mlp-tiny,lr=0.01", "--cluster", "mixed4-first2"), marks=pytest.mark.slow),
        ("plan", "--workload", "mlp-tiny", "--set", "lr=0.01", "--cluster", "mixed4", "--ranks", "2"),
        pytest.param(
            ("simulate", "--workload", "mlp-tiny", "--cluster", "mixed4", "--ranks", "2", "--plan", "best"),
            marks=pytest.mark.slow,
        ),
        ("sweep", "--workload", "mlp-tiny", "--cluster", "two.toml"),
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.slow
def test_the_sweep_that_a_command_suggests_works(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text('[device.a]\n[[host]]\nname = "h"\ndevices = ["a", "a"]\n')
    done = alone(tmp_path, *arguments)
    assert done.returncode == (0 if arguments[0] == "plan" else 2), done.stderr
    (sweep,) = (line for line in printed(done.stdout + done.stderr) if " sweep " in line)
    assert sweep.startswith("mpirun -n 2 autotune sweep --workload mlp-tiny")
    works(sweep, tmp_path)
