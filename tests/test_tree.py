"""The tree of the code: folders import one way, stay small, and every module is used and tested.

The import graph is read from the sources, imports within functions and for type checkers included. A folder is the
directory of a package: a parent and its child are two folders.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.tree_tables import COVERED_BY, COVERS, UNREACHED, UNTESTED

ROOT = Path(__file__).parent.parent
TOP = ("autotune", "workloads", "results", "profilers")
LINKED = TOP[1:]
"""Folders at the top that are packages of autotune by symbolic links."""
MAX_MODULES, MAX_LINES, MAX_FUNCTION_LINES, MAX_SESSION_LINES, MAX_NOXFILE_LINES = 20, 400, 60, 15, 330
UNTESTED_LINES = 40
"""A module of at most this many lines may do without a test of its own."""
COMPILED_LOOPS = {
    ("autotune/provision/compiled.py", "labels"),
    ("autotune/simulate/engine.py", "_loop"),
    ("autotune/simulate/data_parallel.py", "_expand"),
}
"""Functions that numba compiles: one loop over plain arrays each, which calls would slow down."""
ROOTS = ("autotune", "autotune.api", "autotune.cli.main")
LOADED_BY_NAME = "autotune.workloads.models."
"""The registry imports these by the name of a workload."""

Graph = dict[str, set[str]]


@cache
def sources() -> dict[str, Path]:
    """Every module of the package with its real file, by the name it is imported as."""
    found = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            if "data" not in path.relative_to(ROOT / top).parts[:1]:  # results/data: what runs have written
                found[module_name(path)] = path
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in LINKED:
        parts = ("autotune", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, known: Mapping[str, object]) -> Iterator[str]:
    """The modules among those known that a file imports."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from (name for name in (full if full in known else node.module,) if name in known)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def named(path: Path, known: Mapping[str, object]) -> Iterator[str]:
    """The modules among those known that a file names as "module:object", to be imported when that is wanted."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(":") == 1:
            yield from (name for name in (node.value.partition(":")[0],) if name in known)


@cache
def import_graph() -> Graph:
    return {name: set(imported(path, sources())) - {name} for name, path in sources().items()}


def folder(module: str) -> str:
    return module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]


def folder_imports() -> dict[tuple[str, str], list[str]]:
    """Pairs of folders of which the first imports the second, with the imports."""
    found = defaultdict(list)
    for module, others in import_graph().items():
        for other in others:
            if folder(module) != folder(other):
                found[folder(module), folder(other)].append(f"{module} -> {other}")
    return dict(found)


def reached(next_to: Callable[[str], Iterable[str]], roots: Iterable[str]) -> set[str]:
    """The roots, and all that is reached from them."""
    seen: set[str] = set()
    ahead = set(roots)
    while ahead:
        name = ahead.pop()
        seen.add(name)
        ahead |= set(next_to(name)) - seen
    return seen


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of folders that reach each other."""
    reach = {name: reached(graph.__getitem__, graph[name]) for name in graph}
    groups = {tuple(sorted(n for n in graph if name in reach[n] and n in reach[name])) for name in graph}
    return sorted(list(group) for group in groups if group)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_cycle_between_folders() -> None:
    edges = folder_imports()
    graph: Graph = {folder(module): set() for module in sources()}
    for first, second in edges:
        graph[first].add(second)
    closed = {group[0]: [edges[a, b] for a in group for b in group if (a, b) in edges] for group in cycles(graph)}
    assert not closed


def test_no_folder_with_many_modules() -> None:
    count: dict[str, int] = defaultdict(int)
    for name, path in sources().items():
        count[folder(name)] += path.name != "__init__.py"
    assert {name: number for name, number in count.items() if number > MAX_MODULES} == {}


def test_no_long_file() -> None:
    assert {short(path): lines(path) for path in sources().values() if lines(path) > MAX_LINES} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno + 1


def test_no_long_function_but_the_compiled_loops() -> None:
    long = {
        (short(path), name): length
        for path in sources().values()
        for name, length in functions(path)
        if length > MAX_FUNCTION_LINES
    }
    assert {key: length for key, length in long.items() if key not in COMPILED_LOOPS} == {}
    assert set(long) >= COMPILED_LOOPS, "a loop that is no longer long needs no exception"


def test_sessions_are_short_and_each_has_its_sentence() -> None:
    noxfile = ROOT / "noxfile.py"
    assert lines(noxfile) < MAX_NOXFILE_LINES
    for node in parsed(noxfile).body:
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(mark) == "nox.session" for mark in node.decorator_list
        ):
            length = (node.end_lineno or 0) - node.decorator_list[0].lineno + 1
            assert length <= MAX_SESSION_LINES, (node.name, length)
            sentence = (ast.get_docstring(node) or "").strip()
            assert sentence, node.name
            assert "\n" not in sentence, f"nox -l shows the first line only: {node.name}"


def test_sessions_run_programs_that_exist() -> None:
    tables = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in parsed(ROOT / "noxfile.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"PROGRAMS", "MODULES"}
    }
    run = {module for name in tables["PROGRAMS"] for module in tables["MODULES"].get(name, (name,))}
    for node in ast.walk(parsed(ROOT / "noxfile.py")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"run_module", "run_ranks"}:
            folder = "programs/" if ast.unparse(node.func) == "run_ranks" else ""
            name = node.args[2 if folder else 1]
            run |= {folder + name.value} if isinstance(name, ast.Constant) and isinstance(name.value, str) else set()
    assert [name for name in sorted(run) if not (ROOT / "tests" / "benchmarks" / f"{name}.py").is_file()] == []
    assert set(tables["MODULES"]) <= set(tables["PROGRAMS"])


def test_tests_that_start_mpi_jobs_are_in_the_folders_that_the_session_collects() -> None:
    (folders,) = (
        ast.literal_eval(node.value)
        for node in parsed(ROOT / "noxfile.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MPI_FOLDERS"
    )
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.mpi\b", path.read_text(encoding="utf-8"))
    }
    assert len(marked) > 20
    assert [path for path in sorted(marked) if not path.startswith(tuple(f"{folder}/" for folder in folders))] == []


def session_files() -> set[Path]:
    """Files of the tests that a nox session runs: by module, by path, or by the modules and programs that these name."""
    known = {module_name(path): path for path in sorted((ROOT / "tests").rglob("*.py"))}
    started = {path.stem: name for name, path in known.items() if path.parent.name == "programs"}
    by_stem = started | {path.stem: name for name, path in known.items() if path.parent.name == "benchmarks"}

    def next_to(name: str) -> Iterator[str]:
        yield from imported(known[name], known)
        yield from (started[word] for word in words(known[name]) if word in started)

    roots = {by_stem[word] for word in words(ROOT / "noxfile.py") if word in by_stem}
    return {known[name] for name in reached(next_to, {"tests.loops.__main__", *roots})}


def words(path: Path) -> set[str]:
    texts = (n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {word for text in texts for word in re.findall(r"\w+", text)}


def test_every_module_is_reached_by_a_command_the_api_or_a_session() -> None:
    known = sources()
    graph = {name: others | set(named(known[name], known)) for name, others in import_graph().items()}
    roots = {name for name in known if name in ROOTS or name.endswith("__main__") or name.startswith(LOADED_BY_NAME)}
    for file in session_files():
        roots |= set(imported(file, known))
    unreached = {name for name in set(known) - reached(graph.__getitem__, roots) if known[name].name != "__init__.py"}
    assert sorted(unreached - set(UNREACHED)) == []
    assert sorted(set(UNREACHED) - unreached) == [], "reached today: take them off the list"


def mirrored(path: Path) -> Path:
    """Where the test of a module belongs."""
    inside = path.relative_to(ROOT)
    return ROOT / "tests" / inside.with_name(f"test_{inside.name}")


def needs_test(path: Path) -> bool:
    return path.name != "__init__.py" and lines(path) > UNTESTED_LINES and not mirrored(path).exists()


def test_every_module_has_its_test() -> None:
    without, listed = {short(path) for path in sources().values() if needs_test(path)}, {*COVERED_BY, *UNTESTED}
    assert sorted(without - listed) == []
    assert sorted(listed - without) == [], "has a test of its own, is short or is gone: take it off the table"


def test_what_covers_a_module_exists() -> None:
    assert [test for test in COVERS if not (ROOT / "tests" / test).is_file()] == []


def test_private_members_are_used_where_the_list_says() -> None:
    ruff = shutil.which("ruff", path=Path(sys.executable).parent)
    if ruff is None:
        pytest.skip("ruff is not installed in this environment")
    command = [ruff, "check", "--isolated", "--select", "SLF001", "--output-format", "concise", "--quiet", *TOP]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    using = set(re.findall(r"^([^:\n]+\.py):\d+", done.stdout, re.MULTILINE))
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "SLF001" not in options["ignore"]
    listed = {name for name, rules in options["per-file-ignores"].items() if "SLF001" in rules and name != "tests/**"}
    assert using == listed


def test_one_folder_knows_accelerators() -> None:
    """No other mentions torch's device modules, or compares the type of a torch device."""
    named = re.compile(
        r"torch\.(cuda|xpu|mps|accelerator)\b|\bget_device_module\b|\bfrom torch import .*\b(cuda|xpu|accelerator)\b"
        r"|\bdevice\.type\)? *(==|!=|in\b|not in\b)|(==|!=|\bin) [\w.]*\bdevice\.type\b|\.is_(cuda|xpu|cpu)\b"
        r"|torch\.device\(.(cuda|xpu)|\.cuda\(\)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for name, path in sources().items()
        if not f"{name}.".startswith("autotune.runtime.device.")
        for line in path.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    ]
    assert not found
