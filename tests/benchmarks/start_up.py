"""Messages and seconds of the start of a job as ranks grow, up to its first all-reduce: real ranks under mpirun.

    python -m tests.benchmarks.start_up [--ranks 4 16 64]

Counted are the messages that ranks send: over MPI, to open the control network, and over that network, hop by hop.
What gloo sends to connect each pair of its ranks is torch's own and not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.launch.mpirun import NO_FABRIC, find_mpirun

PROGRAM = Path(__file__).parent / "programs" / "start_up.py"
PUBLISHED = Path("results") / "published" / "control-plane" / "start-up.json"
_LIMIT_S = 600


def measure(num_ranks: int) -> dict[str, Any]:
    flags = ["--bind-to", "none", "--allow-run-as-root", "--oversubscribe", *NO_FABRIC]
    command = [str(find_mpirun()), "-n", str(num_ranks), *flags, sys.executable, str(PROGRAM)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the job of {num_ranks} ranks has failed:\n{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    row: dict[str, Any] = json.loads(line)
    row["messages_per_n_log_n"] = row["messages_to_first_all_reduce"] / (num_ranks * math.log2(num_ranks))
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--out", type=Path, default=PUBLISHED)
    options = parser.parse_args(arguments)
    rows = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for num_ranks in options.ranks:
        rows.append(measure(num_ranks))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
        write_json(
            options.out,
            {
                "command": "nox -s start_up",
                "label": "measured on this machine, ranks oversubscribed on its cores",
                "load_before": os.getloadavg()[0],
                "rows": rows,
                "environment": describe_environment(),
            },
        )


if __name__ == "__main__":
    main()
