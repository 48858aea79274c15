"""Where the router sends requests, and why."""

from __future__ import annotations

from array import array

from radixlang.routing import RoutedRequest, Router

HEADER = list(range(1000, 2000))


def request(token_ids: list[int], max_new: int = 8, root: str = "") -> RoutedRequest:
    return RoutedRequest(root, array("i", token_ids).tobytes(), max_new)


def sent_to(router: Router, asked: RoutedRequest) -> int:
    """The worker of a request that ends at once."""
    route = router.route(asked)
    assert route is not None
    router.finished(route, 8)
    return route.worker


def test_a_branch_goes_where_its_longest_prefix_is() -> None:
    router = Router(2)
    first = sent_to(router, request([*HEADER, 1]))
    other = sent_to(router, request(list(range(3000, 4000))))
    assert first != other  # nothing shared: the one that holds less
    assert sent_to(router, request([*HEADER, 2, 3])) == first
    assert sent_to(router, request([*range(3000, 3600), 7])) == other


def test_forks_of_a_small_branch_stay_together() -> None:
    router = Router(2)
    routes = [router.route(request([*range(40), 100 + i])) for i in range(4)]
    assert len({route.worker for route in routes if route is not None}) == 1


def test_a_queue_that_costs_more_than_the_prefix_spreads_it() -> None:
    router = Router(2)
    routes = [router.route(request([*HEADER, i], max_new=64)) for i in range(64)]
    counts = [sum(route is not None and route.worker == w for route in routes) for w in (0, 1)]
    assert min(counts) >= 24
    again = [route.num_held for route in routes if route is not None]
    assert sum(held < len(HEADER) for held in again) == 2  # computed once on each worker


def test_loads_go_down_to_zero_when_all_is_finished() -> None:
    router = Router(3)
    routes = [router.route(request([i, i + 1], max_new=100)) for i in range(30)]
    assert max(router.loads) > 0
    for route in routes:
        assert route is not None
        router.finished(route, 10)
    assert max(router.loads) < 1e-6


def test_namespaces_do_not_attract_each_other() -> None:
    router = Router(2)
    first = sent_to(router, request(HEADER, root="a"))
    assert sent_to(router, request(HEADER, root="b")) != first


def test_what_a_tree_evicts_attracts_no_more() -> None:
    router = Router(2)
    first = sent_to(router, request(HEADER))
    router.evicted(first, "", array("i", HEADER).tobytes(), 10)
    held = router.summary.held("", array("i", HEADER).tobytes())
    assert held[first] == 10
    router.inserted(1 - first, "", array("i", HEADER).tobytes())
    assert sent_to(router, request([*HEADER, 1])) == 1 - first


def test_a_lost_worker_is_sent_nothing_and_holds_nothing() -> None:
    router = Router(2)
    first = sent_to(router, request(HEADER))
    router.lost(first)
    assert sent_to(router, request(HEADER)) == 1 - first
    router.lost(1 - first)
    assert router.route(request(HEADER)) is None
    assert router.summary.num_nodes == 0
