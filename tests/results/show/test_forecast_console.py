"""What a prediction shows beyond its figures: the tree of links, and an interval where sends may block."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from autotune.results.show.forecast_console import show_forecasts
from autotune.results.store.forecast import Forecast
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan
from autotune.workloads.serial import from_data, to_data
from tests.autotune.simulate.test_closed_forms import make_graph, make_simulator, plan_of
from tests.autotune.simulate.test_edge_loads import tree
from tests.autotune.simulate.test_stages import staged


def shown(*forecasts: Forecast) -> str:
    console = Console(file=StringIO(), width=150)
    show_forecasts(console, forecasts)
    text = console.file.getvalue()
    assert isinstance(text, str)
    return text


def test_the_tree_is_shown_where_a_cluster_is_more_than_one_switch():
    simulator = make_simulator(make_graph(1), tree([2, 2], islands=((0, 1),)), 4)
    forecast = simulator.forecast(plan_of(1, 1, 1, 1))
    text = shown(forecast)
    assert "tree: 4 devices in 2 hosts" in text
    assert "2 hosts host0 to host1: 80 Mbit/s, ranks 0 to 3" in text
    assert "island: 3.2 Gbit/s each" in text
    assert from_data(Forecast, to_data(forecast), "here").tree == forecast.tree
    plain = make_simulator(make_graph(1), load_cluster("mixed4"), 4).forecast(plan_of(1, 1, 1, 1))
    assert plain.tree is None
    assert "devices in" not in shown(plain)


def test_an_interval_is_shown_where_sends_may_block():
    simulator = make_simulator(make_graph(2, output=1e6), load_cluster("mixed4").for_ranks(2), 2)
    plan = staged((2, 2), (0, 1), ((0,), (1,)), micro_batches=2)
    assert "that is not known" not in shown(simulator.forecast(plan))
    text = shown(simulator.forecast(replace(plan, comm=CommPlan(transport="nccl"))))
    assert "if stages compute while they send, and if they do not; that is not known" in text


def test_passes_are_named():
    simulator = make_simulator(make_graph(1), load_cluster("mixed4"), 16)
    plan = plan_of(4, 4, 4, 4)
    assert "in 2 passes" in shown(simulator.forecast(replace(plan, batch=BatchPlan(samples=(4,) * 4, accumulate=2))))
    assert "passes" not in shown(simulator.forecast(plan)).split("Per rank")[0]
