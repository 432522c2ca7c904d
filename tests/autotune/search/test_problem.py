"""One reading of a job: the space is built in one place, and tuned DDP is the same peer everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autotune.jobs.race import entrants
from autotune.search.baselines import TunedDdp, tuned_buckets_bytes
from autotune.search.problem import Problem
from autotune.space.space import CROSS_STEP
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import MIB
from autotune.workloads.split import bounds
from autotune.workloads.workload import Loop
from tests.autotune.simulate.test_closed_forms import make_graph

ROOT = Path(__file__).parents[3]


def problem(**changes: object) -> Problem:
    given = {
        "global_batch": 64,
        "param_bytes": 8 * MIB,
        "graph": make_graph(4, param_bytes=MIB, flops=1e6),
        "cluster": load_cluster("mixed4"),
        "limits": bounds(4, 64, minimum=1),
        "transports": ("gloo", "mpi"),
    }
    return Problem(**(given | changes))


def test_the_space_is_built_in_one_place() -> None:
    makers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "autotune").rglob("*.py")
        if "pretrain" not in path.parts  # draws spaces of jobs that do not exist
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Space"
    ]
    assert makers == ["autotune/search/problem.py"]


def test_a_script_without_a_captured_model_has_the_same_space_but_for_what_the_model_decides() -> None:
    whole, script = (problem(graph=graph).space(allow_lossy=False) for graph in (problem().graph, None))
    assert script.reducers == whole.reducers
    assert script.collectives == whole.collectives
    assert (script.factors_for, script.kinds) == (None, ())


def test_a_loop_that_clips_leaves_no_cross_step_overlap_to_choose() -> None:
    assert CROSS_STEP in problem().space(allow_lossy=False).reducers
    assert CROSS_STEP not in problem(loop=Loop(clip_norm=1.0)).space(allow_lossy=False).reducers


def test_tuned_ddp_tries_the_same_bucket_sizes_in_sweep_and_race() -> None:
    raced = [tuner for tuner in entrants(problem(), None, trials=5, seed=0) if isinstance(tuner, TunedDdp)]
    sizes = tuned_buckets_bytes(problem().param_bytes)
    assert {tuple(tuner._buckets_bytes) for tuner in raced} == {tuple(TunedDdp(problem())._buckets_bytes)} == {sizes}
    assert sizes == (*(2**log2 for log2 in range(16, 23)), 25 * MIB)


def test_sizes_that_hold_the_whole_model_are_tried_once() -> None:
    assert tuned_buckets_bytes(100 * 2**10) == (2**16, 25 * MIB)
    assert len(tuned_buckets_bytes(2**30)) == 9


@pytest.mark.parametrize("transports", [("mpi",), ("nccl",)])
def test_without_messages_between_ranks_there_are_plain_buckets(transports: tuple[str, ...]) -> None:
    space = problem(transports=transports).space(allow_lossy=False)
    assert (space.reducers, space.collectives) == (("bucketed",), ("ring",))
