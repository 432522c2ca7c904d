"""Breakdowns and critical paths: equal to a count of unit cells on random timelines, and to closed forms."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from autotune.profilers import timeline as timelines
from autotune.profilers.activity import Activity
from autotune.profilers.breakdown import Breakdown, Parts, RankBreakdown, break_down, largest_costs
from autotune.profilers.timeline import Span, Timeline
from autotune.workloads.errors import SpecError
from tests.profilers.critical_path import CriticalPath, Segment, critical_path

NUM_RANDOM = 1_000
COMPUTE, DATA, COMMUNICATION, STRAGGLER, OTHER = Activity


TRACKS = {"data": "host", "wait": "host", "comm": "comm", "queue": "comm"}


def span(rank: int, kind: str, start_s: float, end_s: float, op: str = "") -> Span:
    return Span(rank=rank, track=TRACKS.get(kind, "compute"), kind=kind, op=op or kind, start_s=start_s, end_s=end_s)


def compute(rank: int, start_s: float, end_s: float, kind: str = "backward") -> Span:
    return span(rank, kind, start_s, end_s)


def data(rank: int, start_s: float, end_s: float) -> Span:
    return span(rank, "data", start_s, end_s)


def wait(rank: int, start_s: float, end_s: float) -> Span:
    return span(rank, "wait", start_s, end_s)


def comm(rank: int, start_s: float, end_s: float, op: str = "a") -> Span:
    return span(rank, "comm", start_s, end_s, op)


def queue(rank: int, start_s: float, end_s: float, op: str = "a") -> Span:
    return span(rank, "queue", start_s, end_s, op)


def timeline(*spans: Span) -> Timeline:
    return Timeline.merge([Timeline(spans=spans)])


def only(breakdown: Breakdown) -> RankBreakdown:
    (rank,) = breakdown.ranks
    return rank


def parts(rank: Parts) -> tuple[float, float, float, float, float]:
    return rank.compute_s, rank.data_s, rank.exposed_s, rank.straggler_s, rank.other_s


def path_of(*spans: Span) -> list[tuple[int, Activity, str, float, float]]:
    return [(s.rank, s.kind, s.op, s.start_s, s.end_s) for s in critical_path(timeline(*spans)).segments]


STRAGGLER_STEP = timeline(
    compute(0, 0, 8), comm(0, 8, 10), compute(0, 10, 11, "optimizer"),
    compute(1, 0, 2), comm(1, 2, 10), compute(1, 10, 11, "optimizer"),
)  # fmt: skip
"""Rank 1 is done after 2 s and waits 6 s for rank 0; then both send for 2 s."""


# --- the oracle: sets of unit cells ------------------------------------------------------------------------------------


class Cells:
    """A timeline of whole seconds, cell by cell."""

    def __init__(self, timeline: Timeline) -> None:
        self.spans: dict[int, list[Span]] = {}
        for one in timeline.spans:
            self.spans.setdefault(one.rank, []).append(one)
        self.joined: dict[tuple[int, str, int], tuple[int, int]] = {}
        for op in {one.op for one in timeline.spans if one.kind == "comm"}:
            starts = {rank: [int(one.start_s) for one, _ in self.turns(rank, op)] for rank in self.spans}
            for turn in range(max(map(len, starts.values()))):
                there = {rank: mine[turn] for rank, mine in starts.items() if len(mine) > turn}
                last = min(rank for rank in there if there[rank] == max(there.values()))
                self.joined.update({(rank, op, turn): (there[last], last) for rank in there})

    def turns(self, rank: int, op: str) -> list[tuple[Span, int]]:
        mine = [one for one in self.spans[rank] if one.kind == "comm" and one.op == op]
        return [(one, turn) for turn, one in enumerate(sorted(mine, key=lambda one: one.start_s))]

    def covered(self, rank: int, track: str, kind: str = "") -> set[int]:
        return {
            cell
            for one in self.spans[rank]
            if one.track == track and kind in ("", one.kind)
            for cell in range(int(one.start_s), int(one.end_s))
        }

    def in_flight(self, rank: int, cell: int) -> list[tuple[int, int, str, int]]:
        """End, moment all had joined, name and last rank of the collectives that a rank is in."""
        return [
            (int(one.end_s), *self.joined[rank, one.op, turn][:1], one.op, self.joined[rank, one.op, turn][1])
            for op in {one.op for one in self.spans[rank] if one.kind == "comm"}
            for one, turn in self.turns(rank, op)
            if one.start_s <= cell < one.end_s
        ]

    def label(self, rank: int, cell: int) -> tuple[Activity, tuple[int, str, int] | None]:
        """What a rank does in a cell, and for collectives: when all had joined, the name, and who was last."""
        if cell in self.covered(rank, "compute"):
            return COMPUTE, None
        if cell in self.covered(rank, "host", "data"):
            return DATA, None
        collectives = self.in_flight(rank, cell)
        complete = [(end, -joined, op, last) for end, joined, op, last in collectives if joined <= cell]
        if complete:
            _, joined, op, last = min(complete)
            return COMMUNICATION, (-joined, op, last)
        if collectives:
            return STRAGGLER, min((joined, op, last) for _, joined, op, last in collectives)
        return OTHER, None


def oracle_parts(cells: Cells, rank: int, window: range) -> RankBreakdown:
    labels = [cells.label(rank, cell) for cell in window]
    count = Counter(activity for activity, _ in labels)
    waited = Counter(about[2] for activity, about in labels if activity is STRAGGLER and about)
    inside = set(window)
    sending = cells.covered(rank, "comm", "comm") & inside
    idle = {cell for cell, (activity, _) in zip(window, labels, strict=True) if activity is OTHER}
    return RankBreakdown(
        rank=rank,
        start_s=window.start,
        end_s=window.stop,
        compute_s=count[COMPUTE],
        data_s=count[DATA],
        exposed_s=count[COMMUNICATION],
        straggler_s=count[STRAGGLER],
        other_s=count[OTHER],
        other_wait_s=len(idle & cells.covered(rank, "host", "wait")),
        overlapped_s=len(sending & cells.covered(rank, "compute")),
        communication_s=len(sending),
        queue_s=len(inside & cells.covered(rank, "comm", "queue")),
        waited_for_s=dict(waited),
    )


def oracle_path(cells: Cells, window: range) -> list[tuple[int, Activity]]:
    """The rank and kind of each cell, found by stepping back cell by cell."""
    ends = {rank: min(max(int(one.end_s) for one in mine), window.stop) for rank, mine in cells.spans.items()}
    rank = min(rank for rank in ends if ends[rank] == max(ends.values()))
    found: dict[int, tuple[int, Activity]] = {}
    cell = window.stop - 1
    seen: set[tuple[int, int]] = set()
    while cell >= window.start:
        activity, about = cells.label(rank, cell)
        seen.add((rank, cell))
        if activity is COMMUNICATION and about:
            while cell >= max(about[0], window.start):
                found[cell] = rank, activity
                cell -= 1
            rank = about[2]
        elif activity is STRAGGLER and about and (about[2], cell) not in seen:
            rank = about[2]
        else:
            waits_for = about
            while cell >= window.start and cells.label(rank, cell) == (activity, waits_for):
                found[cell] = rank, activity
                cell -= 1
                if activity is not STRAGGLER:
                    break
    return [found[cell] for cell in window]


def random_timeline(generator: random.Random) -> Timeline:
    """A few ranks with anything at any time: overlaps, gaps, spans without length, names that come back."""
    spans = []
    length = generator.choice((6, 12, 25))

    def interval() -> tuple[float, float]:
        first, second = generator.randint(0, length), generator.randint(0, length)
        return float(min(first, second)), float(max(first, second))

    num_ranks = generator.randint(1, 4)
    for rank in range(num_ranks):
        spans += [compute(rank, *interval()) for _ in range(generator.randint(0, 3))]
        spans += [data(rank, *interval()) for _ in range(generator.choice((0, 0, 1, 2)))]
        spans += [wait(rank, *interval()) for _ in range(generator.choice((0, 1)))]
        spans += [queue(rank, *interval()) for _ in range(generator.choice((0, 1, 2)))]
    for op in "abcd"[: generator.randint(0, 4)]:
        for rank in range(num_ranks):
            spans += [comm(rank, *interval(), op) for _ in range(generator.choice((0, 1, 1, 1, 2)))]
    generator.shuffle(spans)
    return Timeline(spans=tuple(spans))


def random_window(generator: random.Random, whole: tuple[int, int]) -> range:
    first, second = sorted(generator.randint(whole[0] - 2, whole[1] + 2) for _ in range(2))
    return range(first, second)


def extent(spans: list[Span]) -> range:
    return range(int(min(one.start_s for one in spans)), int(max(one.end_s for one in spans)))


def test_breakdowns_and_paths_of_random_timelines_equal_those_counted_cell_by_cell() -> None:
    generator = random.Random(8)
    for _ in range(NUM_RANDOM):
        given = random_timeline(generator)
        cells = Cells(given)
        whole = extent(list(given.spans)) if given.spans else range(0)
        breakdown = break_down(given)
        assert breakdown.step_s == len(whole)
        assert breakdown.ranks == tuple(
            oracle_parts(cells, rank, extent(cells.spans[rank])) for rank in sorted(cells.spans)
        )
        assert_path(critical_path(given), cells, whole)

        window = random_window(generator, (whole.start, whole.stop))
        pair = (float(window.start), float(window.stop))
        ranks = break_down(given, window=pair).ranks
        assert ranks == tuple(oracle_parts(cells, rank, window) for rank in sorted(cells.spans))
        assert_path(critical_path(given, window=pair), cells, window if given.spans else range(0))


def assert_path(path: CriticalPath, cells: Cells, window: range) -> None:
    """It tiles the window, and each cell is the oracle's."""
    assert all(before.end_s == after.start_s for before, after in pairwise(path.segments))
    assert all(segment.start_s < segment.end_s for segment in path.segments)
    if not window:
        assert path.segments == ()
        return
    assert (path.segments[0].start_s, path.segments[-1].end_s) == (window.start, window.stop)
    found = [(s.rank, s.kind) for s in path.segments for _ in range(int(s.start_s), int(s.end_s))]
    assert found == oracle_path(cells, window)
    assert path.totals_s() == Counter(found)


def test_parts_of_uneven_times_sum_to_the_time_from_first_to_last_and_the_path_tiles_it() -> None:
    generator = random.Random(9)
    for _ in range(200):
        whole = random_timeline(generator)
        moved = Timeline(
            spans=tuple(
                Span(
                    rank=s.rank,
                    track=s.track,
                    kind=s.kind,
                    op=s.op,
                    start_s=s.start_s / 7 + 1e5,
                    end_s=s.end_s / 7 + 1e5,
                )
                for s in whole.spans
            )
        )
        breakdown, path = break_down(moved), critical_path(moved)
        for rank in breakdown.ranks:
            assert rank.wall_s == sum(parts(rank)) == pytest.approx(rank.end_s - rank.start_s, abs=1e-9)
            assert sum(rank.waited_for_s.values()) == pytest.approx(rank.straggler_s, abs=1e-9)
        assert all(before.end_s == after.start_s for before, after in pairwise(path.segments))
        assert sum(path.totals_s().values()) == pytest.approx(breakdown.step_s, abs=1e-9)


# --- one rank ----------------------------------------------------------------------------------------------------------


def test_communication_after_computing_is_all_exposed() -> None:
    rank = only(break_down(timeline(data(0, 0, 1), compute(0, 1, 5), comm(0, 5, 8), compute(0, 8, 9))))
    assert parts(rank) == (5, 1, 3, 0, 0)
    assert (rank.overlapped_s, rank.communication_s, rank.overlap_share) == (0, 3, 0.0)


def test_communication_behind_computing_costs_nothing() -> None:
    rank = only(break_down(timeline(compute(0, 0, 10), comm(0, 2, 7), comm(0, 6, 9, "b"))))
    assert parts(rank) == (10, 0, 0, 0, 0)
    assert (rank.overlapped_s, rank.communication_s, rank.overlap_share) == (7, 7, 1.0)


def test_loading_data_hides_communication_but_is_no_overlap_with_computing() -> None:
    rank = only(break_down(timeline(data(0, 0, 4), comm(0, 2, 6))))
    assert parts(rank) == (0, 4, 2, 0, 0)
    assert (rank.overlapped_s, rank.communication_s) == (0, 4)


def test_queues_are_counted_once_beside_the_parts() -> None:
    rank = only(break_down(timeline(compute(0, 0, 6), queue(0, 1, 4), queue(0, 3, 5, "b"), queue(0, 7, 8, "c"))))
    assert rank.queue_s == 5
    assert parts(rank) == (6, 0, 0, 0, 2)


def test_a_wait_is_exposed_communication_only_while_a_collective_is_in_flight() -> None:
    rank = only(break_down(timeline(compute(0, 0, 2), wait(0, 2, 9), comm(0, 4, 6))))
    assert parts(rank) == (2, 0, 2, 0, 5)
    assert rank.other_wait_s == 5


def test_time_that_nothing_was_recorded_for_is_other_and_no_wait() -> None:
    rank = only(break_down(timeline(compute(0, 0, 2), compute(0, 5, 6))))
    assert parts(rank) == (3, 0, 0, 0, 3)
    assert rank.other_wait_s == 0


def test_one_rank_alone_never_waits() -> None:
    alone = timeline(compute(0, 0, 3), comm(0, 2, 5), compute(0, 5, 6))
    assert only(break_down(alone)).waited_for_s == {}
    assert [(s.kind, s.start_s, s.end_s) for s in critical_path(alone).segments] == [
        (COMPUTE, 0, 2),
        (COMMUNICATION, 2, 5),
        (COMPUTE, 5, 6),
    ]


def test_a_rank_without_communication_has_no_overlap_to_speak_of() -> None:
    assert only(break_down(timeline(compute(0, 0, 1)))).overlap_share is None


# --- several ranks -----------------------------------------------------------------------------------------------------


def test_waiting_for_a_straggler_is_distinguished_from_sending() -> None:
    slow, fast = break_down(STRAGGLER_STEP).ranks
    assert parts(slow) == (9, 0, 2, 0, 0)
    assert parts(fast) == (3, 0, 2, 6, 0)
    assert (slow.waited_for_s, fast.waited_for_s) == ({}, {0: 6})


def test_a_collective_that_runs_makes_the_time_its_own_though_another_waits() -> None:
    ranks = break_down(timeline(comm(0, 0, 10, "a"), comm(1, 8, 10, "a"), comm(0, 2, 6, "b"), comm(1, 2, 6, "b"))).ranks
    assert parts(ranks[0]) == (0, 0, 6, 4, 0)
    assert ranks[0].waited_for_s == {1: 4}


def test_of_two_waits_at_once_the_one_that_is_over_first_counts() -> None:
    ranks = break_down(timeline(comm(0, 0, 9, "a"), comm(1, 8, 9, "a"), comm(0, 0, 9, "b"), comm(2, 5, 9, "b"))).ranks
    assert ranks[0].waited_for_s == {2: 5}
    assert parts(ranks[0]) == (0, 0, 4, 5, 0)


def test_ranks_that_take_no_part_in_a_collective_delay_it_not() -> None:
    ranks = break_down(timeline(comm(0, 0, 4), comm(1, 1, 4), compute(2, 0, 9))).ranks
    assert parts(ranks[0]) == (0, 0, 3, 1, 0)


def test_a_name_that_comes_back_is_matched_turn_by_turn() -> None:
    ranks = break_down(timeline(comm(0, 0, 2), comm(0, 4, 8), comm(1, 1, 2), comm(1, 7, 8))).ranks
    assert parts(ranks[0]) == (0, 0, 2, 4, 2)
    assert ranks[0].waited_for_s == {1: 4}


def test_a_rank_without_samples_only_waits_and_sends() -> None:
    busy, idle = break_down(timeline(compute(0, 0, 6), comm(0, 6, 8), comm(1, 0, 8))).ranks
    assert parts(busy) == (6, 0, 2, 0, 0)
    assert parts(idle) == (0, 0, 2, 6, 0)


def test_a_rank_that_only_has_counters_is_not_broken_down() -> None:
    power = timelines.Counter(rank=0, name="power", unit="W", points=((0.0, 80.0),))
    given = Timeline(spans=(compute(1, 0, 2),), counters=(power,))
    assert [rank.rank for rank in break_down(given).ranks] == [1]


def test_an_empty_timeline_has_no_ranks_and_no_path() -> None:
    empty = break_down(Timeline())
    assert empty == Breakdown()
    assert empty.overall == Parts()
    assert empty.mean_shares() == dict.fromkeys(Activity, 0.0)
    assert largest_costs(empty) == ()
    assert critical_path(Timeline()) == CriticalPath()


def test_a_window_holds_for_all_ranks_and_cuts_what_reaches_over_its_edges() -> None:
    slow, fast = break_down(STRAGGLER_STEP, window=(7, 12)).ranks
    assert parts(slow) == (2, 0, 2, 0, 1)
    assert parts(fast) == (1, 0, 2, 1, 1)
    assert (fast.start_s, fast.end_s, fast.communication_s) == (7, 12, 3)
    assert break_down(STRAGGLER_STEP, window=(7, 12)).step_s == 5


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    for ask in (break_down, critical_path):
        with pytest.raises(SpecError, match="from 3 s to 2 s: give its start first"):
            ask(STRAGGLER_STEP, window=(3, 2))


def test_overall_sums_seconds_and_means_weigh_every_rank_the_same() -> None:
    uneven = break_down(timeline(compute(0, 0, 8), data(1, 0, 1), compute(1, 1, 2)))
    assert parts(uneven.overall) == (9, 1, 0, 0, 0)
    assert uneven.overall.shares()[COMPUTE] == pytest.approx(0.9)
    assert uneven.mean_shares()[COMPUTE] == pytest.approx(0.75)
    assert uneven.ranks[1].shares() == {COMPUTE: 0.5, DATA: 0.5, COMMUNICATION: 0, STRAGGLER: 0, OTHER: 0}


# --- critical paths ----------------------------------------------------------------------------------------------------


def test_the_path_leads_from_a_collective_to_the_rank_that_joined_last() -> None:
    assert path_of(*STRAGGLER_STEP.spans, compute(1, 11, 12, "late")) == [
        (0, COMPUTE, "backward", 0, 8),
        (1, COMMUNICATION, "a", 8, 10),
        (1, COMPUTE, "optimizer", 10, 11),
        (1, COMPUTE, "late", 11, 12),
    ]


def test_the_path_runs_through_a_collective_though_its_rank_computes_meanwhile() -> None:
    assert path_of(compute(0, 0, 6), comm(0, 2, 9), compute(1, 0, 4), comm(1, 4, 9)) == [
        (1, COMPUTE, "backward", 0, 4),
        (0, COMMUNICATION, "a", 4, 9),
    ]


def test_the_path_leaves_a_wait_that_ends_in_computing_for_the_straggler() -> None:
    """Rank 0 gives up waiting for rank 1 at 5, and computes."""
    assert path_of(comm(0, 0, 9), compute(0, 5, 10), data(1, 0, 7), comm(1, 7, 9)) == [
        (1, DATA, "data", 0, 5),
        (0, COMPUTE, "backward", 5, 10),
    ]


def test_of_two_collectives_the_path_takes_the_one_that_ended_when_computing_went_on() -> None:
    assert path_of(comm(0, 0, 12, "a"), comm(0, 3, 8, "b"), compute(0, 8, 13)) == [
        (0, COMMUNICATION, "a", 0, 3),
        (0, COMMUNICATION, "b", 3, 8),
        (0, COMPUTE, "backward", 8, 13),
    ]


def test_the_path_goes_back_over_idle_time_to_before_a_rank_had_started() -> None:
    assert path_of(compute(0, 0, 1), compute(1, 3, 5)) == [(1, OTHER, "", 0, 3), (1, COMPUTE, "backward", 3, 5)]


def test_ranks_that_wait_for_each_other_end_the_search_and_not_the_path() -> None:
    crossed = path_of(comm(0, 0, 9, "a"), comm(1, 0, 9, "b"), compute(0, 5, 9), comm(0, 6, 9, "b"), comm(1, 6, 9, "a"))
    assert crossed == [(1, STRAGGLER, "b", 0, 5), (0, COMPUTE, "backward", 5, 9)]


def test_totals_of_a_path_add_up_its_segments_the_longest_first() -> None:
    path = CriticalPath(
        segments=tuple(
            Segment(rank=rank, kind=kind, op="", start_s=start, end_s=end)
            for rank, kind, start, end in [(0, DATA, 0, 1), (1, COMPUTE, 1, 3), (0, DATA, 3, 4), (1, COMPUTE, 4, 6)]
        )
    )
    assert list(path.totals_s().items()) == [((1, COMPUTE), 4), ((0, DATA), 2)]


# --- in words ----------------------------------------------------------------------------------------------------------


def test_the_largest_costs_are_listed_in_order() -> None:
    step = timeline(
        data(0, 0, 3), compute(0, 3, 60), comm(0, 60, 80), compute(0, 80, 100),
        compute(1, 0, 19), comm(1, 19, 80), wait(1, 80, 90), compute(1, 97, 100),
    )  # fmt: skip
    assert largest_costs(break_down(step), count=10) == (
        "rank 1 waits 41 % of the step for rank 0's gradients",
        "rank 0 spends 20 % of the step on communication that nothing hides",
        "rank 1 spends 20 % of the step on communication that nothing hides",
        "rank 1 is blocked for 10 % of the step with no collective in flight",
        "rank 1 does nothing that was recorded for 7 % of the step",
        "rank 0 loads data for 3 % of the step",
    )
    assert len(largest_costs(break_down(step))) == 3
    assert all(text.isascii() for text in largest_costs(break_down(step), count=10))


def test_computing_and_what_would_read_as_nothing_are_no_costs() -> None:
    step = timeline(compute(0, 0, 1000), compute(1, 0, 900), data(1, 900, 904))
    assert largest_costs(break_down(step)) == ()


def test_a_wait_that_the_clocks_could_have_made_up_is_no_cost() -> None:
    step = timeline(comm(0, 0, 10), comm(1, 1, 10))
    wait_text = "rank 0 waits 10 % of the step for rank 1's gradients"
    assert wait_text in largest_costs(break_down(step))
    blurred = break_down(Timeline(spans=step.spans, clock_error_s=1.5))
    assert wait_text not in largest_costs(blurred)
