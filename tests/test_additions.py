"""A newcomer's additions: a codec, a transport, a knob and a search method, each one module, show up everywhere unasked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.cli.parser import build_parser
from autotune.jobs.choices import all_choices, as_markdown
from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.search.methods import METHODS, PredictedSearch
from autotune.search.optuna_study import distributions
from autotune.search.problem import Problem
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.space.knob import KNOBS
from autotune.space.space import resets
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import (
    CODECS,
    TRANSPORTS,
    CommPlan,
    CompressionPlan,
    cpu_transports,
    default_plan,
    lossless_codecs,
)
from autotune.workloads.plan.choices import load
from autotune.workloads.split import bounds
from tests.autotune.simulate.test_closed_forms import make_graph
from tests.results import sample

REGISTRIES: dict[str, Any] = {
    "toy_codec": (CODECS, "negated"),
    "toy_transport": (TRANSPORTS, "toy"),
    "toy_knob": (KNOBS, "order"),
    "toy_method": (METHODS, "first"),
}


@pytest.fixture
def added(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module, imported, and taken out again."""
    registry, name = REGISTRIES[request.param]
    importlib.import_module(f"tests.additions.{request.param}")
    yield name
    registry.remove(name)
    del sys.modules[f"tests.additions.{request.param}"]


def problem() -> Problem:
    return Problem(
        global_batch=64,
        param_bytes=8 * 2**20,
        graph=make_graph(8, param_bytes=2**20, flops=1e6),
        cluster=load_cluster("mixed4"),
        limits=bounds(4, 64, minimum=1),
        transports=cpu_transports(),
        codecs=lossless_codecs(),
    )


def simulator() -> Simulator:
    asked = problem()
    assert asked.graph is not None
    info = replace(sample.info().workload, global_batch=64, param_bytes=asked.param_bytes)
    return Simulator(info, asked.graph, cost_model(asked.graph, asked.cluster))


@pytest.mark.parametrize("added", REGISTRIES, indirect=True)
def test_it_is_documented(added: str) -> None:
    assert any(added in named for named in all_choices().values())
    assert f"| `{added}` |" in as_markdown()


def test_the_page_of_choices_is_up_to_date() -> None:
    page = Path(__file__).parents[1] / "docs" / "choices.md"
    assert page.read_text() == as_markdown(), "run `autotune choices --markdown > docs/choices.md`"


@pytest.mark.parametrize("added", ["toy_codec"], indirect=True)
def test_a_codec_is_in_space_and_simulator_and_encodes(added: str) -> None:
    space = problem().space(allow_lossy=False)
    assert space.coordinates()["codec"].choices == ("none", added)
    assert distributions(space)["codec"].choices == ("none", added)
    plan = space.with_knobs((32, 16, 8, 8), {"codec": added})
    plan.validate(num_ranks=4, global_batch=64)
    assert plan.is_lossless
    assert simulator().step_s(plan) > 0
    codec = make_codec(CompressionPlan(codec=added), BufferShape(shapes=((3,),), rank=0, num_ranks=1))
    flat = torch.tensor([1.0, -2.0, 3.0])
    first = codec.encode(flat)
    assert codec.decode(first.tensors, flat) is None
    assert flat.tolist() == [1.0, -2.0, 3.0]


@pytest.mark.parametrize("added", ["toy_transport"], indirect=True)
def test_a_transport_is_in_space_and_simulator(added: str) -> None:
    space = problem().space(allow_lossy=False)
    assert space.coordinates()["transport"].choices == ("gloo", "mpi", added)
    plan = space.with_knobs((32, 16, 8, 8), {"transport": added})
    assert plan.comm.transport == added
    plan.validate(num_ranks=4, global_batch=64)
    assert simulator().step_s(plan) > 0
    messages = space.with_knobs((32, 16, 8, 8), {"transport": added, "collective": "shards"})
    assert messages.comm.transport == "gloo"


@pytest.mark.parametrize("added", ["toy_knob"], indirect=True)
def test_a_knob_is_in_space_points_local_search_and_ablation(added: str) -> None:
    space = problem().space(allow_lossy=False)
    assert space.coordinates()[added].choices == ("fifo", "layer")
    assert added in distributions(space)
    assert {knobs[added] for knobs in space.grid()} == {"fifo", "layer"}
    plan = space.with_knobs((16, 16, 16, 16), {"reducer": "scheduled", added: "fifo"})
    assert plan.comm.priority == "fifo"
    assert space.point(plan)[added] == "fifo"
    assert space.holds(plan)
    bucketed = space.with_knobs((16, 16, 16, 16), {added: "fifo"})
    assert bucketed.comm == CommPlan(bucket_bytes=bucketed.comm.bucket_bytes)  # it does not apply
    default = default_plan((16, 16, 16, 16))
    assert ("order", "by layer") in [(one.title, one.text) for one in resets(plan, default)]
    assert space.describe()["knobs"][added]["choices"] == ["fifo", "layer"]


@pytest.mark.parametrize("added", ["toy_method"], indirect=True)
def test_a_search_method_is_in_commands_and_searches(added: str) -> None:
    options = build_parser().parse_args(["sweep", "--sampler", added])
    assert options.sampler == added
    assert build_parser().parse_args(["plan", "--method", added]).method == added
    space = problem().space(allow_lossy=False)
    asked = PredictedSearch(space=space, start=(16, 16, 16, 16), judge=simulator().step_s, evaluations=5, seed=0)
    judged = load(METHODS[added].predicted_by)(asked)
    assert len(judged) == 5
    assert judged[0][0] == min(value for value, _ in judged)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="codec 'none' is registered already"):
        CODECS.register(CODECS["none"])
