"""The event engine against closed forms, to float accuracy."""

from __future__ import annotations

import itertools
import random

import pytest

from autotune.simulate.engine import simulate
from autotune.simulate.tasks import NO_LIMIT, MemoryChange, TaskList, make_site
from autotune.workloads.errors import SpecError


def exact(value):
    return pytest.approx(value, rel=1e-12)


def test_a_chain_takes_the_sum():
    made = TaskList()
    last = None
    for seconds in (0.5, 1.25, 2.0):
        last = made.compute(0, seconds, [last] if last is not None else [])
    assert simulate(made.tasks(), make_site(1)).makespan_s == exact(3.75)


def test_a_device_does_one_thing_at_a_time_the_most_urgent_first():
    made = TaskList()
    for priority in (3, 1, 2):
        made.compute(0, 1.0, priority=priority)
    assert list(simulate(made.tasks(), make_site(1)).start_s) == [2.0, 0.0, 1.0]


def test_equal_priorities_go_in_the_order_of_their_numbers():
    made = TaskList()
    for _ in range(5):
        made.compute(0, 1.0)
    assert list(simulate(made.tasks(), make_site(1)).start_s) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_all_that_becomes_ready_at_one_moment_is_seen_before_anything_starts():
    made = TaskList()
    first, second = made.compute(0, 1.0), made.compute(1, 1.0)
    late = made.compute(2, 1.0, [second], priority=9)
    urgent = made.compute(2, 1.0, [first], priority=1)
    run = simulate(made.tasks(), make_site(3))
    assert (run.start_s[urgent], run.start_s[late]) == (1.0, 2.0)


def test_a_circle_is_refused():
    made = TaskList()
    first = made.compute(0, 1.0)
    second = made.compute(0, 1.0, [first])
    made.wait(first, after=second)
    with pytest.raises(SpecError, match="2 of 2 tasks wait for each other"):
        simulate(made.tasks(), make_site(1))


@pytest.mark.parametrize("serialized", [True, False])
def test_one_transfer_takes_its_fixed_time_its_bytes_on_the_tightest_link_and_the_latency(serialized):
    made = TaskList()
    made.transfer([(0, 100.0), (1, 30.0)], fixed_s=0.5, latency_s=0.25)
    assert simulate(made.tasks(), make_site(0, [50.0, 10.0], serialized=serialized)).makespan_s == exact(
        0.5 + 3.0 + 0.25
    )


def test_on_serialized_links_the_second_waits_for_the_first_but_not_for_its_latency():
    made = TaskList()
    made.transfer([(0, 10.0)], latency_s=5.0)
    made.transfer([(0, 10.0)], latency_s=5.0)
    assert list(simulate(made.tasks(), make_site(0, [10.0])).end_s) == [exact(6.0), exact(7.0)]


def test_shared_two_at_once_take_as_long_as_their_bytes_together():
    made = TaskList()
    made.transfer([(0, 10.0)])
    made.transfer([(0, 30.0)])
    run = simulate(made.tasks(), make_site(0, [10.0], serialized=False))
    assert list(run.end_s) == [exact(2.0), exact(4.0)]  # half each until the first is done, then all for the second


def test_shared_a_late_comer_slows_the_first_down():
    made = TaskList()
    made.transfer([(0, 20.0)])
    made.transfer([(0, 5.0)], fixed_s=1.0)
    run = simulate(made.tasks(), make_site(0, [10.0], serialized=False))
    assert list(run.end_s) == [exact(2.5), exact(2.0)]


def test_max_min_what_one_transfer_cannot_use_the_other_gets():
    """A crosses a slow and a fast link, B the fast one only: A gets 2 of the fast link's 10, B the other 8."""
    made = TaskList()
    made.transfer([(0, 2.0), (1, 2.0)])
    made.transfer([(1, 8.0)])
    run = simulate(made.tasks(), make_site(0, [2.0, 10.0], serialized=False))
    assert list(run.end_s) == [exact(1.0), exact(1.0)]


def test_fairness_is_in_bytes_not_in_shares_of_the_transfer():
    made = TaskList()
    made.transfer([(0, 10.0)])
    made.transfer([(0, 1000.0)])
    assert simulate(made.tasks(), make_site(0, [10.0], serialized=False)).end_s[0] == exact(2.0)


def test_credit_is_a_soft_window():
    """Credit 15, parts of 10: the first leaves 5, the second still goes (and leaves -5), the third waits for the first."""
    made = TaskList()
    for _ in range(3):
        made.transfer([(0, 10.0)], num_bytes=10.0, latency_s=1.0)
    run = simulate(made.tasks(), make_site(0, [10.0], credit_bytes=[15.0]))
    assert list(run.start_s) == [0.0, 0.0, exact(2.0)]
    assert list(run.end_s) == [exact(2.0), exact(3.0), exact(4.0)]


def test_credit_below_the_bandwidth_delay_product_leaves_the_link_idle():
    """One part of 10 in flight at a time, each 1 s on the link and 1 s of latency: half the bandwidth."""
    made = TaskList()
    for _ in range(5):
        made.transfer([(0, 10.0)], num_bytes=10.0, latency_s=1.0)
    assert simulate(made.tasks(), make_site(0, [10.0], credit_bytes=[1.0])).makespan_s == exact(10.0)
    assert simulate(made.tasks(), make_site(0, [10.0], credit_bytes=[20.0])).makespan_s == exact(6.0)


def test_the_most_urgent_part_overtakes_those_that_wait_not_the_one_in_flight():
    made = TaskList()
    ready = made.compute(0, 0.5)
    made.transfer([(0, 10.0)], num_bytes=10.0, priority=9)
    made.transfer([(0, 10.0)], num_bytes=10.0, priority=8)
    urgent = made.transfer([(0, 10.0)], [ready], num_bytes=10.0, priority=0)
    run = simulate(made.tasks(), make_site(1, [10.0], credit_bytes=[1.0]))
    # At the start 8 goes before 9; the urgent part comes at 0.5 and goes next.
    assert [run.start_s[2], run.start_s[urgent], run.start_s[1]] == [0.0, exact(1.0), exact(2.0)]


def test_slots_bound_how_many_are_in_flight():
    made = TaskList()
    for _ in range(4):
        made.transfer([], fixed_s=1.0)
    assert simulate(made.tasks(), make_site(0, slots=[2])).makespan_s == exact(2.0)
    assert simulate(made.tasks(), make_site(0, slots=[NO_LIMIT])).makespan_s == exact(1.0)


def test_memory_peaks_where_it_should():
    made = TaskList()
    first = made.compute(0, 1.0, memory=MemoryChange(device=0, at_start=10.0))
    second = made.compute(0, 1.0, [first], memory=MemoryChange(device=0, at_start=5.0, at_end=-5.0))
    made.compute(0, 1.0, [second], memory=MemoryChange(device=0, at_start=1.0, at_end=-11.0))
    run = simulate(made.tasks(), make_site(1))
    assert (run.peak_bytes[0], run.peak_at_s[0]) == (15.0, 1.0)


def random_tasks(seed, num_tasks):
    draw, made = random.Random(seed), TaskList()
    for number in range(num_tasks):
        after = sorted(draw.sample(range(number), min(number, draw.randint(0, 3))))
        if draw.random() < 0.5:
            made.compute(draw.randint(0, 3), draw.random(), after, priority=draw.randint(0, 3))
        else:
            links = draw.sample(range(4), draw.randint(1, 3))
            loads = [(link, draw.random()) for link in links]
            made.transfer(loads, after, num_bytes=draw.random(), fixed_s=draw.random() / 9, latency_s=draw.random() / 9)
    return made


@pytest.mark.parametrize("serialized", [True, False])
def test_random_graphs_keep_the_rules(serialized):
    for seed in range(20):
        made = random_tasks(seed, 60)
        tasks = made.tasks()
        run = simulate(tasks, make_site(4, [1.0, 2.0, 3.0, 4.0], credit_bytes=[1.5], serialized=serialized))
        for before, after in made.edges:
            assert run.end_s[before] <= run.start_s[after] + 1e-12
        for device in range(4):
            own = sorted((run.start_s[t], run.end_s[t]) for t in range(60) if made.device[t] == device)
            assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(own))
        for task in range(60):
            alone = made.seconds[task] + made.latency_s[task]
            alone += max((load / speed for link, load in made.loads[task] for speed in [link + 1.0]), default=0.0)
            assert run.end_s[task] - run.start_s[task] >= alone - 1e-9
        for link in range(4):  # no link carries more than it can
            carried = sum(load for loads in made.loads for where, load in loads if where == link)
            assert run.makespan_s >= carried / (link + 1.0) - 1e-9


def test_the_same_graph_gives_the_same_run_bit_for_bit():
    tasks = random_tasks(3, 200).tasks()
    site = make_site(4, [1.0, 2.0, 3.0, 4.0], credit_bytes=[1.5], serialized=False)
    first, second = simulate(tasks, site), simulate(tasks, site)
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.end_s.tobytes() == second.end_s.tobytes()


def test_nothing_to_do_takes_no_time():
    assert simulate(TaskList().tasks(), make_site(1)).makespan_s == 0.0
