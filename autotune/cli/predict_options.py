"""The options of predictions: simulate, plan, advise, schedule."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from autotune.cli.options import common_options, job_options, method_texts, trace_option, transports_option
from autotune.jobs.question import OBJECTIVES
from autotune.placement.groups.methods import PLACEMENT_METHODS
from autotune.search.methods import predicting


def _prediction_options(parser: argparse.ArgumentParser) -> None:
    job_options(parser, several_clusters=False)
    parser.add_argument(
        "--profile",
        dest="profiles",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="take costs from this profile (default: the kept one of this workload and cluster, else the cluster file)",
    )
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="EDIT",
        help="bandwidth*2, bandwidth.host3=1 Gbit/s, latency*10, speed.rank0*2, add=DEVICE, remove=HOST, batch=128",
    )


def add_simulate(commands: Any) -> None:
    parser = common_options(
        commands, "simulate", "predict the step of a plan on a cluster: time, breakdown, memory (no MPI needed)"
    )
    _prediction_options(parser)
    parser.add_argument(
        "--plan",
        metavar="best|default|FILE",
        help="the plan to predict (default: the kept best, else torch DDP's default)",
    )
    trace_option(parser, "the predicted step of all ranks")
    parser.set_defaults(subcommand="simulate")


def add_plan(commands: Any) -> None:
    parser = common_options(commands, "plan", "the best plan for a cluster on predictions alone (no MPI needed)")
    _prediction_options(parser)
    parser.add_argument("--objective", default="time", choices=OBJECTIVES)
    parser.add_argument("--min-throughput", type=float, default=0.0, metavar="X", help="samples per second at least")
    parser.add_argument("--method", default="descent", choices=predicting(), help=method_texts(predicting()))
    parser.add_argument("--allow-lossy", action="store_true", help="let the search round gradients to fp16 or bf16")
    parser.add_argument(
        "--any-plan",
        action="store_true",
        help="also propose what no job runs yet, such as tensor-parallel groups (default: only where nothing else fits)",
    )
    parser.add_argument(
        "--placement",
        default="portfolio",
        choices=("off", *PLACEMENT_METHODS),
        help="how plans with groups of ops are searched (default portfolio)",
    )
    parser.add_argument(
        "--simulations", type=int, default=200, metavar="N", help="of plans with groups of ops (default 200)"
    )
    parser.add_argument("--explain", action="store_true", help="say what each decision of a placement is worth")
    transports_option(parser, "choose from")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the plan to a file, for train --plan FILE")
    parser.set_defaults(subcommand="plan")


def add_advise(commands: Any) -> None:
    parser = common_options(
        commands, "advise", "is another device or a faster link worth it, and which plan would use it (no MPI needed)"
    )
    _prediction_options(parser)
    for option, shape, text in (
        ("--add", "add={}", "one more host with a device of this kind"),
        ("--remove", "remove={}", "without this host"),
        ("--replace", "replace={}", "HOST:DEVICE, a host with devices of another kind"),
    ):
        parser.add_argument(
            option,
            dest="what_if",
            type=shape.format,
            action="append",
            metavar=option.strip("-").upper(),
            help=f"{text}; as often as there are changes to compare",
        )
    parser.add_argument("--pool", metavar="FILE", help="a cluster whose kinds of devices can be added as well")
    parser.add_argument(
        "--subsets", action="store_true", help="which hosts of the cluster to use, and where adding one stops paying"
    )
    parser.add_argument("--measure", action="store_true", help="run every plan as well (emulated clusters)")
    parser.add_argument("--objective", default="time", choices=OBJECTIVES, help="of the plan for each (default time)")
    parser.set_defaults(subcommand="advise")


def add_schedule(commands: Any) -> None:
    parser = common_options(commands, "schedule", "the best pipeline schedule of a placement (no MPI needed)")
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE.json", help="devices, memory, blocks: see docs/schedules.md"
    )
    _prediction_options(parser)
    parser.add_argument("--stages", type=int, metavar="N", help="with --workload: stages (default: one per device)")
    parser.add_argument("--micro-batches", type=int, default=32, metavar="N", help="micro-batches to run (default 32)")
    parser.add_argument("--time", type=float, metavar="S", help="seconds to search (default: few, at most 60)")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write a chain's order for torch.distributed.pipelining"
    )
    trace_option(parser, "the schedule of all devices")
    parser.set_defaults(subcommand="schedule", workload="")
