"""The sweeps whose reports are kept in results/published: `python -m tests.benchmarks.published_runs`, or the files named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.published_table import FOLDER

AUTOTUNE = str(Path(sys.executable).with_name("autotune"))
PUBLISHED = {
    "vgg-mixed4": "--ranks 4 --workload vgg --cluster mixed4 --trials 20",
    "vgg-mixed4-batch96": "--ranks 4 --workload vgg --set global_batch=96 --cluster mixed4 --trials 20 --study batch96",
    "vgg-mixed4-random-control": "--ranks 4 --workload vgg --cluster mixed4 --trials 20 --sampler random --study control",
    "vgg-mixed4-lossy": "--ranks 4 --workload vgg --cluster mixed4 --trials 12 --allow-lossy --study lossy",
    "resnet-mixed4": "--ranks 4 --workload resnet --cluster mixed4 --trials 12",
    "gpt-mixed4": "--ranks 4 --workload gpt --cluster mixed4 --trials 12",
    "vgg-other-clusters": "--ranks 4 --workload vgg --cluster uniform4,slow-link4,two-fast-two-slow --trials 12 --study other",
    "mlp-slow-host4": "--ranks 4 --workload mlp --cluster tests/benchmarks/clusters/slow-host4.toml --trials 6 --study slow-host",
    "vgg-this-machine": "--ranks 2 --workload vgg --cluster this-machine --trials 12 --study real",
    "digits-this-machine": "--ranks 2 --workload digits --cluster this-machine --trials 12 --study real-digits",
}
"""Arguments of `autotune sweep`, by file name."""


def main(names: list[str]) -> None:
    for name in names or PUBLISHED:
        kept = Path(".nox") / "publish" / "tmp" / name  # relative: the report states the command
        shutil.rmtree(kept, ignore_errors=True)
        sweep = (*PUBLISHED[name].split(), "--quiet", "--results", str(kept))
        subprocess.run([AUTOTUNE, "sweep", *sweep], check=True)
        report = subprocess.run([AUTOTUNE, "report", "--json", "--results", str(kept)], check=True, capture_output=True)
        (FOLDER / f"{name}.json").write_bytes(report.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
