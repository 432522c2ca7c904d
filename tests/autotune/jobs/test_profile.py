"""From pairs to hosts, and which host a rank is on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.cli import main as cli
from autotune.cli import rank_commands
from autotune.jobs.job import ProfileJob
from autotune.jobs.network_profile import Network, collective_budget, host_links, unavailable
from autotune.jobs.profile import hosts_of_ranks
from autotune.results.store.fits import Source, TransferFit
from autotune.results.store.profile import LinkProfile
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.plan import MIB

GBIT = 125e6
MIXED = load_cluster("mixed-both4")
PAIRS = load_cluster("two-fast-two-slow")


def link(from_host: str, to_host: str, bytes_per_s: float | None, latency_s: float = 1e-4) -> LinkProfile:
    fit = TransferFit(source=Source.MEASURED, low=4, high=2**23, latency_s=latency_s, bytes_per_s=bytes_per_s)
    return LinkProfile(from_host=from_host, to_host=to_host, transport="gloo", fit=fit)


def network(cluster: Cluster, *, num_ranks: int = 4, transports: tuple[str, ...] = ("gloo", "mpi")) -> Network:
    class Ranks:
        size = num_ranks

    class JobContext:
        pass

    context: Any = JobContext()
    context.cluster, context.transports = cluster.for_ranks(num_ranks), transports
    hosts = hosts_of_ranks(context.cluster, ["here"] * num_ranks)
    return Network(context=context, control=cast("Any", Ranks()), hosts=hosts, timeout_s=1.0)


def test_the_command_line_becomes_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[ProfileJob] = []
    monkeypatch.setattr(rank_commands, "run_profile", lambda job, _launch: made.append(job) or 0)
    options = ["--workload", "gpt", "--cluster", "mixed4", "--transports", "gloo", "--results", str(tmp_path)]
    assert cli.main(["profile", *options, "--rounds", "4", "--seed", "7", "--timeout", "9"]) == 0
    (job,) = made
    assert (job.workload, job.clusters, job.transports) == ("gpt", ("mixed4",), ("gloo",))
    assert (job.rounds, job.seed, job.timeout_s, job.results) == (4, 7, 9.0, tmp_path)
    assert job.command.startswith("autotune profile --workload gpt")


def test_collectives_are_measured_up_to_the_size_of_the_model() -> None:
    assert collective_budget(10_000).largest_bytes == 8 * MIB
    assert collective_budget(8 * MIB + 1).largest_bytes == 32 * MIB
    assert collective_budget(500 * MIB).largest_bytes == 32 * MIB


def test_links_of_hosts_follow_from_pairs() -> None:
    links = [
        link("a", "b", GBIT, 2e-4),
        link("b", "a", GBIT / 5),
        link("a", "a", 10 * GBIT, 1e-6),
    ]
    a, b = host_links(links)
    assert (a.host, a.up_bytes_per_s, a.up_is_limit, a.down_bytes_per_s) == ("a", GBIT, False, GBIT / 5)
    assert (b.host, b.up_bytes_per_s, b.down_bytes_per_s, b.source) == ("b", GBIT / 5, GBIT, Source.MEASURED)
    assert a.latency_s == b.latency_s == 1e-4


def test_a_pair_too_fast_to_tell_is_no_bandwidth() -> None:
    (a, b) = host_links([link("a", "b", None), link("b", "a", None)])
    assert (a.up_bytes_per_s, b.down_bytes_per_s, a.up_is_limit) == (None, None, False)


def test_an_emulated_rank_is_where_the_cluster_says_and_a_real_one_where_it_finds_itself() -> None:
    assert hosts_of_ranks(PAIRS, ["here"] * 4) == ("host0", "host0", "host1", "host1")
    in_lab = dataclasses.replace(MIXED, in_lab=True)
    assert hosts_of_ranks(in_lab, ["host0", "host1", "host2", "host3"]) == ("host0", "host1", "host2", "host3")
    here = load_cluster("this-machine").for_ranks(3)
    assert len(set(hosts_of_ranks(here, ["x", "x", "x"]))) == 1
    assert hosts_of_ranks(here, ["x", "y", "x"]) == ("host0", "host1", "host0")


def test_host_names_of_a_job_are_not_told() -> None:
    here = load_cluster("this-machine").for_ranks(2)
    assert "secret" not in str(hosts_of_ranks(here, ["secret-1", "secret-2"]))


def test_what_is_not_measured_is_listed_with_the_reason() -> None:
    assert set(unavailable(network(MIXED))) == {"broadcast", "all-gather"}
    assert unavailable(network(dataclasses.replace(MIXED, in_lab=True))) == {}
    assert set(unavailable(network(MIXED, num_ranks=1))) == {"all-reduce", "broadcast", "all-gather", "links"}
    assert "gloo or NCCL" in unavailable(network(MIXED, transports=("mpi",)))["links"]
    assert "states no link" in unavailable(network(PAIRS, num_ranks=2))["links"]


@pytest.mark.parametrize(("cluster", "num_pairs"), [(MIXED, 12), (PAIRS, 2), (load_cluster("this-machine"), 2)])
def test_pairs_between_hosts_and_within_them_only_where_links_are_real(cluster: Cluster, num_pairs: int) -> None:
    assert len(network(cluster).pairs()) == num_pairs


def test_all_reduces_are_measured_in_every_way_in_which_a_search_may_carry_them_out() -> None:
    flat, several = network(MIXED), network(PAIRS)
    assert flat.collectives("gloo") == ("ring", "shards")
    assert several.collectives("gloo") == ("ring", "shards", "hierarchical", "hierarchical-shards")
    assert several.collectives("mpi") == ("ring",)
