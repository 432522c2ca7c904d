"""The commands and their options. An option's `dest` is the field of the job that it fills: see `autotune.cli.from_options`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from autotune.cli.options import common_options, job_options, method_texts, split_names, trace_option, transports_option
from autotune.cli.predict_options import add_advise, add_plan, add_schedule, add_simulate
from autotune.cli.provision_options import PROVISION_TEXT, add_provision
from autotune.results.imports.formats import FORMATS
from autotune.search.methods import measuring
from autotune.workloads.changes.scenario_file import scenario_names
from autotune.workloads.plan import CODECS, one_round_codecs

DISTRIBUTION = "hetero-autotune"
DESCRIPTION = "Train a neural network fast on whatever mix of devices you have: measure plans under MPI, keep the best."


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autotune", description=DESCRIPTION)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="the version that is installed")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_doctor(commands)
    _add_init(commands)
    _add_sweep(commands)
    _add_train(commands)
    _add_race(commands)
    _add_profile(commands)
    _add_import(commands)
    add_simulate(commands)
    add_plan(commands)
    add_advise(commands)
    add_schedule(commands)
    add_provision(common_options(commands, "provision", PROVISION_TEXT))
    _add_best(commands)
    _add_report(commands)
    _add_compare(commands)
    _add_choices(commands)
    _add_lab(commands)
    return parser


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is shown."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{parser.prog} {_version()}\n")
        parser.exit()


def _version() -> str:
    from importlib import metadata  # noqa: PLC0415 - the other commands start faster without it

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"(version unknown: {DISTRIBUTION} is not installed, this is a source folder)"


def _add_doctor(commands: Any) -> None:
    parser = common_options(commands, "doctor", "what this machine can do, and the fix for what it cannot")
    parser.add_argument(
        "--ranks", dest="num_ranks", type=int, default=4, metavar="N", help="ranks you mean to start (default 4)"
    )
    parser.set_defaults(subcommand="doctor")


def _add_init(commands: Any) -> None:
    text = "a cluster file from what is found here, or on the hosts of the MPI job"
    parser = common_options(commands, "init", text)
    parser.add_argument(
        "--output", type=Path, default=Path("cluster.toml"), metavar="FILE", help="the file (default %(default)s)"
    )
    parser.add_argument("--measure", action="store_true", help="measure links between the ranks (under mpirun)")
    parser.add_argument(
        "--ranks",
        dest="num_ranks",
        type=int,
        metavar="N",
        help="start mpirun with N ranks on this machine, and print the command",
    )
    parser.set_defaults(subcommand="init")


def _add_sweep(commands: Any) -> None:
    parser = common_options(
        commands, "sweep", "measure plans on all ranks, keep the best, report (the main job; run it under mpirun)"
    )
    job_options(parser, several_clusters=True)
    parser.add_argument("--trials", type=int, default=20, metavar="T", help="plans the search may measure (default 20)")
    parser.add_argument("--time", dest="time_s", type=float, metavar="S", help="stop searching after S seconds")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: the workload's)")
    parser.add_argument("--sampler", default="tpe", choices=measuring(), help=method_texts(measuring()))
    parser.add_argument(
        "--allow-lossy",
        action="store_true",
        help="let the search use codecs that change gradients, under a quality guard",
    )
    parser.add_argument(
        "--codecs",
        type=split_names,
        default=",".join(one_round_codecs()),
        metavar="LIST",
        help=f"codecs to choose from, if lossy ones are allowed: {', '.join(CODECS)} (default %(default)s)",
    )
    transports_option(parser, "choose from")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="unscored steps per trial (default 2)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="scored steps per trial (default: about a second of them, at least 5)"
    )
    parser.set_defaults(subcommand="sweep")


def _add_train(commands: Any) -> None:
    parser = common_options(
        commands, "train", "train with a plan, and show how it compares with the default (run it under mpirun)"
    )
    job_options(parser, several_clusters=False)
    parser.add_argument(
        "--plan", default="best", metavar="best|FILE", help="the plan kept by the last sweep, or a file"
    )
    parser.add_argument("--steps", type=int, default=100, metavar="K", help="optimizer steps (default 100)")
    parser.add_argument(
        "--replay",
        metavar="NAME|FILE.toml",
        help=f"a scenario of changing bandwidths and speeds: {', '.join(scenario_names())}; or your own",
    )
    trace_option(parser, "one step of all ranks, with torch's ops and device counters")
    parser.add_argument("--online", action="store_true", help="retune while training when devices or links change")
    parser.set_defaults(subcommand="train")


def _add_race(commands: Any) -> None:
    text = "torch DDP in several forms and our plans, tuned with equal steps, then compared interleaved (run it under mpirun)"
    parser = common_options(commands, "race", text)
    job_options(parser, several_clusters=False)
    parser.add_argument("--trials", type=int, default=10, metavar="T", help="plans each contender may try (default 10)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="unscored steps per trial (default 2)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="scored steps per trial (default 4)")
    parser.set_defaults(subcommand="race")


def _add_profile(commands: Any) -> None:
    text = "measure what each op, link and collective costs, and keep it for predictions (run it under mpirun)"
    parser = common_options(commands, "profile", text)
    job_options(parser, several_clusters=False)
    transports_option(parser, "measure")
    trace_option(parser, "one step of all ranks under torch DDP, with torch's ops and device counters")
    parser.set_defaults(subcommand="profile")


def _add_import(commands: Any) -> None:
    text = "profiles that other tools measured become a graph, a profile and a cluster for simulate, plan and schedule"
    parser = common_options(commands, "import", text)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    formats = "; ".join(f"{name}: {entry.text}" for name, entry in FORMATS.items())
    parser.add_argument("--format", default="", choices=tuple(FORMATS), help=f"{formats} (default: detect it)")
    parser.add_argument(
        "--output", type=Path, default=Path(), metavar="DIR", help="folder of the files (default: here)"
    )
    parser.add_argument("--name", default="", help="of the model (default: that in the file, or the file's own)")
    parser.add_argument("--device", default="", metavar="NAME", help="that it was measured on, as in cluster files")
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples per step (default: those of one pass)")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of one pass, where the file does not say")
    parser.add_argument(
        "--time-unit", default="", metavar="UNIT", help="of times whose column does not say: s, ms, us, ns"
    )
    parser.add_argument(
        "--keys", type=split_names, default=(), metavar="LIST", help="columns that keys of nested JSON are"
    )
    parser.add_argument("--placement", default="", metavar="44", help="steps: the hosts that the cluster file is for")
    parser.add_argument("--param-bytes", type=float, metavar="N", help="steps: bytes of the model's gradients")
    parser.set_defaults(subcommand="import")


def _add_best(commands: Any) -> None:
    parser = common_options(commands, "best", "the plans kept for reuse")
    parser.add_argument("--workload", metavar="NAME", help="only this workload's")
    parser.add_argument("--cluster", metavar="NAME", help="only this cluster's")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the one plan that matches to a file")
    parser.set_defaults(subcommand="best")


def _add_report(commands: Any) -> None:
    parser = common_options(commands, "report", "show a study's report again (the latest, if none is named)")
    parser.add_argument("study", nargs="?", metavar="STUDY")
    trace_option(parser, "the traced step of the best plan (or of --trial)")
    parser.add_argument("--trial", type=int, metavar="N", help="with --trace: the trial to write, by its number")
    parser.set_defaults(subcommand="report")


def _add_compare(commands: Any) -> None:
    text = "is B slower than A, beyond noise? Exit code 4 if anything in both is"
    parser = common_options(commands, "compare", text)
    parser.add_argument("before", metavar="A", help="a study, or a file: comparison, race, report, benchmarks, runs")
    parser.add_argument("after", metavar="B", help="the same kind, measured later")
    parser.set_defaults(subcommand="compare")


def _add_lab(commands: Any) -> None:
    text = "a cluster of Linux namespaces on this machine: real TCP, bandwidth limits, CPU quotas (needs root)"
    lab = commands.add_parser("lab", help=text, description=text)
    actions = lab.add_subparsers(title="actions", required=True, metavar="ACTION")
    helps = {
        "up": "make the lab that a cluster file describes",
        "run": "run a command under mpirun on the lab's hosts: lab run -- autotune sweep ...",
        "status": "the labs that are up",
        "down": "remove the lab and every process in it",
    }
    for action, help_text in helps.items():
        parser = actions.add_parser(action, help=help_text, description=help_text)
        parser.add_argument(
            "--name", default="lab", metavar="LAB", help="several labs can stand side by side (default lab)"
        )
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else")
        parser.set_defaults(subcommand="lab", action=action)
        if action == "up":
            parser.add_argument("--cluster", required=True, metavar="NAME|FILE.toml", help="device mix")
        if action == "run":
            parser.add_argument(
                "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run on every rank"
            )


def _add_choices(commands: Any) -> None:
    parser = common_options(commands, "choices", "what a plan or a search may choose from, with one line each")
    parser.add_argument("--markdown", action="store_true", help="as a page of documentation")
    parser.set_defaults(subcommand="choices")
