"""Find a workload by name ("vgg", "vgg-tiny") or by "module:factory"; unknown names suggest the nearest."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.workload import Workload, check_loop

SIZES = ("tiny", "small", "large")
DEFAULT_SIZE = "small"
MODELS = ("mlp", "vgg", "resnet", "gpt", "dlrm", "digits", "text")
_SINGLE_SIZE = ("digits", "text")
_NEXT_OPTION = re.compile(r",(?=[^\W\d]\w*=)")
"""A comma before an option; any other is part of a value."""


def workload_names() -> list[str]:
    """Every name that `load_workload` accepts: "vgg" is "vgg-small"."""
    sized = [f"{model}-{size}" for model in MODELS if model not in _SINGLE_SIZE for size in SIZES]
    return [*MODELS, *sized]


def split_workload(name: str) -> tuple[str, dict[str, str]]:
    """A workload and its options from the name that files and reports have: "vgg,lr=0.1" -> ("vgg", {"lr": "0.1"})."""
    spec, *pairs = _NEXT_OPTION.split(name)
    return spec, dict(pair.split("=", 1) for pair in pairs)


def is_graph_file(spec: str) -> bool:
    """Whether --workload names an op graph instead of a model: see `autotune.workloads.graphs.graph_file`."""
    return spec.endswith(".json")


def check_workload_name(spec: str) -> None:
    """Refuse a name that cannot exist, without importing torch."""
    if is_graph_file(spec):
        raise SpecError(
            f"workload {spec!r} is a graph file, which can be predicted (simulate, plan, schedule) but not run: name the model, as "
            "module:factory"
        )
    if ":" not in spec and spec not in workload_names():
        raise unknown_name("workload", spec, workload_names(), "your own: --workload module:factory")


def load_workload(spec: str, options: Mapping[str, Any] | None = None) -> Workload:
    """The workload called `spec`, with the factory's keyword arguments `options`.

    A user's factory is looked for on the path and in the working directory, as `python -m` would.
    """
    check_workload_name(spec)
    chosen = dict(options or {})
    if ":" in spec:
        factory = _user_factory(spec)
    else:
        model, _, size = spec.partition("-")
        factory = importlib.import_module(f"autotune.workloads.models.{model}").workload
        if model not in _SINGLE_SIZE:
            chosen = {"size": size or DEFAULT_SIZE} | chosen
    workload = factory(**_checked_options(spec, factory, chosen))
    if not isinstance(workload, Workload):
        members = [name for name in dir(Workload) if not name.startswith("_") and not hasattr(workload, name)]
        raise SpecError(
            f"workload {spec!r} lacks {', '.join(sorted(members))}: see workloads/workload.py for what a workload has"
        )
    check_loop(workload)
    return workload


def _user_factory(spec: str) -> Any:
    module_name, _, factory_name = spec.partition(":")
    if not module_name or not factory_name:
        raise SpecError(f"workload {spec!r}: write module:factory, or a name such as vgg")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"workload {spec!r}: cannot import {error.name!r}: run from the folder that holds it, or set PYTHONPATH"
        ) from error
    if not callable(factory := getattr(module, factory_name, None)):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise unknown_name(f"factory in {module_name!r}", factory_name, known)
    return factory


def _checked_options(spec: str, factory: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options converted for the factory's signature: text becomes the type of the parameter's default."""
    parameters = inspect.signature(factory).parameters
    for key in options:
        if key not in parameters:
            raise unknown_name(f"option of workload {spec!r}", key, parameters or ["(none)"])
    return {key: _typed(spec, key, value, parameters[key].default) for key, value in options.items()}


def _typed(spec: str, key: str, value: Any, default: Any) -> Any:
    wanted = str if default in (None, inspect.Parameter.empty) else type(default)
    if isinstance(value, wanted):
        return value
    if wanted not in _READERS:
        raise SpecError(
            f"option {key!r} of workload {spec!r} is of type {wanted.__name__}: --set takes numbers, words, true and false"
        )
    try:
        return _READERS[wanted](str(value))
    except (ValueError, KeyError) as error:
        example = str(default).lower() if wanted is bool else default
        raise SpecError(
            f"option {key}={value!r} of workload {spec!r} must be of type {wanted.__name__}, such as --set {key}={example}"
        ) from error


_READERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: {"true": True, "false": False, "1": True, "0": False}.__getitem__,
}
