"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from autotune.search.methods import METHODS
from autotune.workloads.cluster import cluster_names
from autotune.workloads.plan import cpu_transports
from autotune.workloads.registry import workload_names


def common_options(commands: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="results folder (default: $AUTOTUNE_RESULTS or results/data)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of your own to import first: it may register codecs, transports, knobs or search methods",
    )
    return parser


def job_options(parser: argparse.ArgumentParser, *, several_clusters: bool) -> None:
    shipped = ", ".join(cluster_names())
    several = "; several, separated by commas, are ranked" if several_clusters else ""
    parser.add_argument(
        "--workload",
        default="vgg",
        metavar="NAME|module:factory",
        help=f"(default vgg) one of {', '.join(workload_names())}; or your own; predictions take an op graph too, FILE.json",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the workload, such as global_batch=128",
    )
    parser.add_argument(
        "--cluster",
        dest="clusters",
        type=split_names,
        default="this-machine",
        metavar="NAME|FILE.toml",
        help=f"device mix: {shipped}; or your own{several}",
    )
    parser.add_argument(
        "--ranks",
        dest="num_ranks",
        type=int,
        metavar="N",
        help="start mpirun with N ranks on this machine, and print the command",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of data order, model and search (default 0)")
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="rounds of the interleaved comparison (default 10)"
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=120.0,
        metavar="S",
        help="time limit of one trial in seconds (default 120)",
    )


def trace_option(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help=f"write {what}, for ui.perfetto.dev")


def transports_option(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--transports",
        type=split_names,
        default=",".join(cpu_transports()),
        metavar="LIST",
        help=f"transports to {purpose} (default %(default)s)",
    )


def split_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def method_texts(names: tuple[str, ...]) -> str:
    """The methods of a search with their one line each."""
    return "; ".join(f"{name}: {METHODS[name].text}" for name in names) + " (default %(default)s)"
