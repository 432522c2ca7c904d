"""The options of `autotune provision`."""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune.provision.methods import METHODS

PROVISION_TEXT = "which layers run on which type of resource, and how many units to rent, at least cost (no MPI needed)"
_ALL = "all"
_STEP = 0.02


def add_provision(parser: argparse.ArgumentParser) -> None:
    """A file, or a workload and a cluster; prices; what is wanted; how it is searched."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE.json", help="types, layers, floor: see docs/provision.md"
    )
    _add_source(parser)
    _add_prices(parser)
    parser.add_argument("--min-throughput", type=float, metavar="X", help="examples per second at least")
    parser.add_argument("--examples", type=float, metavar="N", help="that the cost is for (of a workload: 1e6)")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="TYPE=N", help="most units of a type, in all stages together"
    )
    parser.add_argument(
        "--budget", type=float, metavar="MONEY", help="the highest throughput that costs at most this, for all examples"
    )
    parser.add_argument(
        "--front",
        type=float,
        nargs="?",
        const=_STEP,
        metavar="STEP",
        help=f"all plans of which none is cheaper and faster, each at least STEP faster than the last (default {_STEP:g}; 0: all)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the front as a picture, in one HTML file")
    texts = "; ".join(f"{name}: {METHODS[name].text}" for name in METHODS)
    parser.add_argument(
        "--method",
        default="exact",
        choices=[*METHODS, _ALL],
        metavar="METHOD",
        help=f"{texts}; {_ALL}: a table of all, with the gap to the optimum (default exact)",
    )
    parser.add_argument(
        "--time", type=float, default=60.0, metavar="S", help="seconds of a search at most (default 60)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of methods that draw (default 0)")
    parser.set_defaults(subcommand="provision", num_ranks=None)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", metavar="NAME|module:factory", help="in place of a file: its ops are the layers")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the workload")
    parser.add_argument(
        "--cluster",
        dest="clusters",
        type=lambda text: (text,),
        default=("this-machine",),
        metavar="NAME|FILE.toml",
        help="with --workload: its kinds of devices are the types",
    )
    parser.add_argument(
        "--profile",
        dest="profiles",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --workload: measured times; several, of 1, 2 and 4 ranks, show how a kind scales",
    )


def _add_prices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="a price list: TOML of your own, or a vms.csv of skypilot-catalog"
    )
    parser.add_argument("--spot", action="store_true", help="spot prices of the list")
    parser.add_argument("--region", metavar="NAME", help="only prices of this region (default: the least of all)")
    parser.add_argument(
        "--price-of",
        action="append",
        default=[],
        metavar="TYPE=ENTRY",
        help='the entry of the list for a type: an instance type, "V100:8", "HOST + A100:1"',
    )
