"""`python -m tests.loops --seed 0 --count 100 [--ranks 2,3,4] [--shrink] [--json FILE]`; exit 1 if a loop fails."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from tests.loops.check import check, drawn, shrunk
from tests.loops.generate import draw_loop
from tests.loops.render import render
from tests.loops.summary import failure_text, summary_data, summary_text
from tests.loops.verdict import Verdict

_SHOWN = 10
"""Failures that are printed in full."""


def main() -> int:
    """Run, report, exit code."""
    given = _arguments()
    if given.script:
        print(render(draw_loop(given.seed, given.script)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs are ended, too
    verdicts: list[Verdict] = []
    begun_s = time.monotonic()

    def progress(found: list[Verdict]) -> None:
        verdicts.extend(found)
        failed = [verdict.loop.seed for verdict in verdicts if verdict.is_failure]
        print(f"{len(verdicts)}/{given.count} loops, {time.monotonic() - begun_s:.0f} s, failed: {failed}", flush=True)

    ranks = [int(size) for size in given.ranks.split(",")]
    for loops in drawn(given.seed, given.count, ranks).values():
        check(loops, progress)
    verdicts.sort(key=lambda verdict: verdict.loop.seed)
    failures = [verdict for verdict in verdicts if verdict.is_failure]
    for verdict in failures[:_SHOWN]:
        print(failure_text(shrunk(verdict) if given.shrink else verdict), flush=True)
    for verdict in failures[_SHOWN:]:
        print(f"seed {verdict.loop.seed} on {verdict.loop.ranks} ranks: {verdict.kind}: {verdict.text.strip()[-300:]}")
    data = summary_data(verdicts)
    print(summary_text(data))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(data, indent=1) + "\n")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first loop; the others follow")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks, one after another; default %(default)s")
    parser.add_argument("--shrink", action="store_true", help="make failing loops smaller (up to 25 launches each)")
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--script", type=int, metavar="RANKS", help="print the script of --seed and stop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
