"""What runs next: dependencies, priorities, room."""

import random

from hypothesis import given
from hypothesis import strategies as st

from harness import order
from harness.contract import Needs
from harness.frontier import Frontier
from harness.plan import Step, Task


def steps(needs: dict[str, list[str]], priorities: dict[str, str] | None = None) -> dict[str, Step]:
    made = {}
    for name, each in needs.items():
        task = Task.model_validate({"id": name, "content": name, "priority": (priorities or {}).get(name, "medium")})
        made[name] = Step(task, tuple(each), None, {}, {}, (), frozenset())
    return made


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Step]:
    count = draw(st.integers(1, 12))
    names = [f"t{number}" for number in range(count)]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:at]), unique=True)) if at else [] for at, name in enumerate(names)
    }
    priorities = {name: draw(st.sampled_from(["high", "medium", "low"])) for name in names}
    shuffled = draw(st.permutations(names))
    return steps({name: needs[name] for name in shuffled}, priorities)


@given(graphs())
def test_an_order_holds_every_task_once_after_what_it_needs(graph: dict[str, Step]) -> None:
    found = order.execution_order(graph)
    assert sorted(found) == sorted(graph)
    place = {name: position for position, name in enumerate(found)}
    assert all(place[need] < place[name] for name, step in graph.items() for need in step.needs)


@given(graphs())
def test_no_ready_task_is_passed_over_for_one_of_lower_effective_priority(graph: dict[str, Step]) -> None:
    ranks = order.effective_priority(graph)
    done: set[str] = set()
    for name in order.execution_order(graph):
        ready = [each for each, step in graph.items() if each not in done and done.issuperset(step.needs)]
        assert ranks[name] == min(ranks[each] for each in ready)
        done.add(name)


@given(graphs())
def test_a_task_inherits_the_highest_priority_of_what_waits_for_it(graph: dict[str, Step]) -> None:
    ranks = order.effective_priority(graph)
    for name, step in graph.items():
        assert ranks[name] <= order.RANKS[step.task.priority]
        assert all(ranks[need] <= ranks[name] for need in step.needs)


def test_a_cycle_is_a_path_that_ends_where_it_began_and_there_is_none_without() -> None:
    assert order.cycle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == ["a", "b", "c", "a"]
    assert order.cycle({"a": ["b", "c"], "b": ["c"], "c": [], "d": ["unknown"]}) is None


def test_chains_of_ten_thousand_need_no_recursion() -> None:
    names = [f"t{number}" for number in range(10_000)]
    needs = {name: [names[at - 1]] if at else [] for at, name in enumerate(names)}
    chain = steps(needs, {names[-1]: "high"})
    assert order.execution_order(chain) == names
    assert set(order.effective_priority(chain).values()) == {0}
    assert order.cycle({**needs, names[0]: [names[-1]]}) == [names[0], *reversed(names)]
    frontier = Frontier(chain)
    for name in names:
        assert frontier.pop() == name
        frontier.settle(name)
    assert len(frontier.unsettle(names[0])) == 9_999
    assert len(frontier.below(names[0], leave=lambda _: False)) == 9_999


CAPACITY = order.Capacity(jobs=3, cpus=4, gpus=2, ram_bytes=100)


def test_the_first_that_fits_is_handed_out_and_room_comes_back() -> None:
    queue = order.Queue(steps({"big": [], "small": [], "tiny": []}, {"big": "high"}), CAPACITY)
    for name, cpus in (("big", 3), ("small", 2), ("tiny", 1)):
        queue.add(name, Needs(cpus=cpus))
    assert queue.pick() == ("big", Needs(cpus=3))
    queue.occupy("big", Needs(cpus=3))
    assert queue.pick() is None, "small waits for two of the four, and keeps the last one from tiny"
    queue.release("big")
    assert queue.pick() == ("small", Needs(cpus=2))


def test_small_tasks_never_starve_a_big_one() -> None:
    names = {f"s{number}": [] for number in range(50)}
    queue = order.Queue(steps({"big": [], **names}, {"big": "high"}), CAPACITY)
    queue.add("s0", Needs(gpus=1))
    assert queue.pick() is not None
    queue.occupy("s0", Needs(gpus=1))
    queue.add("big", Needs(gpus=2))
    for number in range(1, 50):
        queue.add(f"s{number}", Needs(gpus=1))
    assert queue.pick() is None
    queue.release("s0")
    assert queue.pick() == ("big", Needs(gpus=2))


def test_never_more_jobs_than_allowed_and_what_asks_for_too_much_is_handed_out_for_preflight() -> None:
    queue = order.Queue(steps({f"t{number}": [] for number in range(5)}), CAPACITY)
    for number in range(4):
        queue.add(f"t{number}", Needs())
    for _ in range(3):
        picked = queue.pick()
        assert picked
        queue.occupy(*picked)
    assert queue.pick() is None
    queue.release("t0")
    queue.add("t4", Needs(gpus=99))
    assert queue.pick() == ("t3", Needs())
    assert queue.pick() == ("t4", Needs(gpus=99))


def test_a_frontier_opens_what_is_settled_through_and_reopens_all_that_rests_on_it() -> None:
    frontier = Frontier(steps({"a": [], "b": ["a"], "c": ["b"], "x": []}), only=["c"])
    assert list(frontier.wanted) == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        assert frontier.pop() == name
        frontier.settle(name)
    assert frontier.pop() is None
    assert frontier.unsettle("a") == {"b", "c"}
    opened = []
    while (name := frontier.pop()) is not None:
        opened.append(name)
        frontier.settle(name)
    assert opened == ["a", "b", "c"], "also those that were settled before"


def test_what_waits_for_a_failed_task_is_found_with_the_need_that_leads_there() -> None:
    frontier = Frontier(steps({"a": [], "b": ["a"], "c": ["b"], "d": []}))
    assert frontier.below("a", leave=lambda name: name == "c") == {"b": "a"}
    assert frontier.below("a", leave=lambda _: False) == {"b": "a", "c": "b"}


def test_the_same_queue_hands_out_in_the_same_order_however_it_was_filled() -> None:
    graph = steps({f"t{number}": [] for number in range(20)}, {f"t{number}": "high" for number in range(0, 20, 3)})
    expected = order.execution_order(graph)
    for seed in range(5):
        queue = order.Queue(graph, order.Capacity(jobs=99, cpus=1, gpus=0, ram_bytes=1))
        for name in random.Random(seed).sample(sorted(graph), 20):
            queue.add(name, Needs())
        assert [picked[0] for picked in iter(queue.pick, None)] == expected
