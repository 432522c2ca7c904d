"""Which hosts of a pool train best, and where adding one stops paying.

Hosts with like devices and links are interchangeable, so a subset is a count of each kind. All subsets are predicted where there are
few; of many, those on the way from each kind alone to the whole pool, each time with the next host that gains most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autotune.jobs.advise.changes import Planner
from autotune.results.store.advice import Subset
from autotune.results.text.numbers import counted
from autotune.workloads.changes.cluster_edits import Setting
from autotune.workloads.cluster import Host

MOST_SUBSETS = 128
"""Of which all are predicted."""
Counts = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Hosts of a cluster by kind."""

    setting: Setting
    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    """Per kind, per host of that kind: its ranks."""

    @property
    def all(self) -> Counts:
        return tuple(len(hosts) for hosts in self.ranks)

    def subset(self, counts: Counts) -> Setting:
        kept = [
            rank for hosts, count in zip(self.ranks, counts, strict=True) for ranks in hosts[:count] for rank in ranks
        ]
        cluster = self.setting.cluster.part(sorted(kept))
        name = f"{len(cluster.hosts)} of {self.setting.cluster.name}"
        return replace(self.setting, cluster=replace(cluster, name=name))


def make_pool(setting: Setting) -> Pool:
    """Hosts are alike if they have the same devices, links and place."""
    kinds: dict[Host, list[tuple[int, ...]]] = {}
    first = 0
    for host in setting.cluster.hosts:
        ranks = tuple(range(first, first + len(host.devices)))
        first += len(host.devices)
        kinds.setdefault(replace(host, name=""), []).append(ranks)
    return Pool(setting=setting, ranks=tuple(tuple(hosts) for hosts in kinds.values()))


def advise_subsets(planner: Planner, setting: Setting, say: Callable[[str], None]) -> tuple[list[Subset], bool]:
    """The subsets, the most samples per second first, and whether they are all that there are."""
    pool = make_pool(setting)
    total = _number_of_subsets(pool.all)
    is_complete = total <= MOST_SUBSETS
    of_all = f" of {total}" if is_complete else ""
    found: dict[Counts, Subset] = {}

    def predict(counts: Counts) -> Subset:
        if counts not in found:
            chosen = pool.subset(counts)
            hosts, devices = chosen.cluster.hosts, chosen.cluster.devices
            say(f"{counted(device.name for device in devices)} ({len(found) + 1}{of_all})")
            best = planner.best(chosen)
            found[counts] = Subset(
                hosts=tuple(host.name for host in hosts),
                devices=tuple(device.name for device in devices),
                forecast=best.forecast,
                limited_by=best.limited_by,
                measured_s=best.measured_s,
            )
        return found[counts]

    for counts in _all_counts(pool.all) if is_complete else ():
        predict(counts)
    if not is_complete:
        _grow(pool.all, predict)
    return sorted(found.values(), key=lambda subset: -_rate(subset)), is_complete


def _rate(subset: Subset) -> float:
    """Samples per second; 0 where nothing fits."""
    return 0.0 if subset.forecast is None else subset.forecast.samples_per_s


def _grow(all_counts: Counts, predict: Callable[[Counts], Subset]) -> None:
    """From each kind alone, one host more in each round, whichever gives the fastest subset."""
    for kind in range(len(all_counts)):
        counts = tuple(int(other == kind) for other in range(len(all_counts)))
        predict(counts)
        while counts != all_counts:
            counts = max(_with_one_more(counts, all_counts), key=lambda more: _rate(predict(more)))


def _with_one_more(counts: Counts, most: Counts) -> Iterator[Counts]:
    for kind, (count, limit) in enumerate(zip(counts, most, strict=True)):
        if count < limit:
            yield (*counts[:kind], count + 1, *counts[kind + 1 :])


def _all_counts(most: Counts) -> Iterator[Counts]:
    return (counts for counts in itertools.product(*(range(count + 1) for count in most)) if any(counts))


def _number_of_subsets(most: Counts) -> int:
    total = 1
    for count in most:
        total *= count + 1
    return total - 1
