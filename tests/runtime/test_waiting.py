"""The order of the queue: depth first, bounded displacement, fair shares."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from radixlang.errors import ParameterError
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.scheduling.sequence import TokenSequence
from radixlang.runtime.scheduling.waiting_queue import MAX_DISPLACEMENT, WaitingQueue

_numbers = itertools.count(1)


def sequence(tokens: list[int], salt: str = "") -> TokenSequence:
    job: Any = None
    made = TokenSequence(job, Namespace(salt), np.array(tokens, np.int32), first_logit=0, holder="")
    made.arrival = next(_numbers)
    return made


def drain(queue: WaitingQueue) -> list[TokenSequence]:
    return list(iter(queue.pop, None))


def test_siblings_are_served_together() -> None:
    queue = WaitingQueue()
    rows = [sequence([stem, leaf]) for leaf in range(4) for stem in range(3)]
    for each in rows:
        queue.push(each)
    stems = [int(each.tokens[0]) for each in drain(queue)]
    assert len([1 for a, b in itertools.pairwise(stems) if a != b]) == 2


def test_a_late_sibling_joins_those_served_a_while_ago() -> None:
    """Several run at once: when the last of one group ends, the next group has begun."""
    queue = WaitingQueue()
    first, second, third = ([[stem, 7, 7, leaf] for leaf in range(4)] for stem in (1, 2, 3))
    for tokens in (*first, *second, *third):
        queue.push(sequence(tokens))
    assert [int(queue.pop().tokens[0]) for _ in range(6)] == [1, 1, 1, 1, 2, 2]  # type: ignore[union-attr]
    queue.push(sequence([1, 7, 7, 0, 9]))
    assert [int(each.tokens[0]) for each in drain(queue)] == [1, 2, 2, 3, 3, 3, 3]


def test_order_of_tokens_is_that_of_the_tree_beyond_one_byte() -> None:
    queue = WaitingQueue()
    for stem in (300, 2, 70_000, 300, 2, 70_000):
        queue.push(sequence([stem, next(_numbers)]))
    assert [int(each.tokens[0]) for each in drain(queue)] == [2, 2, 300, 300, 70_000, 70_000]


def test_first_come_is_in_order_of_arrival() -> None:
    queue = WaitingQueue("fcfs")
    rows = [sequence([random.Random(i).randint(0, 9)]) for i in range(20)]
    for each in rows:
        queue.push(each)
    assert drain(queue) == rows


def test_cold_request_among_endless_hot_ones_is_served_within_a_bound() -> None:
    queue = WaitingQueue()
    cold = sequence([0])
    queue.push(sequence([5, 0]))
    assert queue.pop() is not None  # the sweep is past the cold one's place
    queue.push(cold)
    served = 0
    while (each := queue.pop()) is not cold:
        assert each is None or int(each.tokens[0]) == 5
        queue.push(sequence([5, served]))
        queue.push(sequence([5, served]))
        served += 1
    assert served <= MAX_DISPLACEMENT + 2


def test_tenant_with_few_requests_is_not_starved_by_one_with_many() -> None:
    queue = WaitingQueue()
    for index in range(100):
        queue.push(sequence([index] * 10, salt="many"))
    for index in range(5):
        queue.push(sequence([index] * 10, salt="few"))
    salts = [each.namespace.salt for each in drain(queue)]
    assert salts[:10].count("few") == 5


def test_front_goes_first_and_removal_works_everywhere() -> None:
    queue = WaitingQueue()
    rows = [sequence([i]) for i in range(5)]
    for each in rows[:4]:
        queue.push(each)
    queue.push_front(rows[4])
    queue.remove(rows[2])
    queue.remove(rows[2])
    assert len(queue) == 4
    assert drain(queue) == [rows[4], rows[0], rows[1], rows[3]]
    queue.push_front(rows[0])
    queue.remove(rows[0])
    assert queue.pop() is None


def test_random_pushes_pops_and_removals_lose_nobody() -> None:
    choose = random.Random(0)
    queue, waiting, served = WaitingQueue(), [], set()
    for _ in range(3000):
        action = choose.random()
        if action < 0.5 or not waiting:
            waiting.append(sequence([choose.randint(0, 3) for _ in range(4)], choose.choice("ab")))
            queue.push(waiting[-1])
        elif action < 0.6:
            queue.remove(waiting.pop(choose.randrange(len(waiting))))
        else:
            each = queue.pop()
            assert each is not None
            assert each not in served
            waiting.remove(each)
            served.add(each)
        assert len(queue) == len(waiting)
    assert set(drain(queue)) == set(waiting)


def test_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="depth_first, fcfs"):
        WaitingQueue("lifo")
