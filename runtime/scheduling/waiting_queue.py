"""The order in which waiting sequences run.

Depth first over the tree of cached and waiting prompts gives the best hit rate if memory covers
the longest request (Zheng et al. 2024, theorem 3.1). Prompts sorted by their tokens are in that
order already: neighbours share the longest prefixes. So a queue is a sorted list and a cursor that
sweeps over it repeatedly. Sequences behind the cursor age: after a bounded number of others they
are served out of order. Each tenant (the salt of the namespace) has a queue, and the tenant that
has been given the fewest tokens is next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from radixlang.errors import ParameterError
from radixlang.runtime.cache.node import TOKEN_BYTES, num_common_tokens
from radixlang.runtime.scheduling.sequence import TokenSequence

Key = tuple[bytes, int]
NUM_RECENT = 16  # recently served keys whose neighbours may be served out of the sweep
MAX_DISPLACEMENT = 256  # how many later arrivals may be served before a waiting sequence


def depth_first(sequence: TokenSequence) -> Key:
    """Order by weights and tokens: siblings are neighbours."""
    head = f"{sequence.namespace.weights_version}\0".encode()
    head += bytes(-len(head) % TOKEN_BYTES)  # so that keys compare token by token
    return head + sequence.keys.astype(">i8").tobytes(), sequence.arrival


def first_come(sequence: TokenSequence) -> Key:
    """Order by arrival."""
    return b"", sequence.arrival


ORDERS: dict[str, Callable[[TokenSequence], Key]] = {"depth_first": depth_first, "fcfs": first_come}


class _TenantQueue:
    """One tenant's waiting sequences."""

    def __init__(self, key_of: Callable[[TokenSequence], Key]) -> None:
        self._key_of = key_of
        self._keys: list[Key] = []
        self._by_key: dict[Key, TokenSequence] = {}
        self._key_by_sequence: dict[TokenSequence, Key] = {}
        self._by_age: deque[tuple[int, TokenSequence]] = (
            deque()
        )  # (due at that many pops, sequence)
        self._cursor: Key = (b"", -1)
        self._served: deque[Key] = deque(maxlen=NUM_RECENT)
        self._num_pops = 0
        self.num_served_tokens = 0

    def __len__(self) -> int:
        return len(self._keys)

    def push(self, sequence: TokenSequence) -> None:
        key = self._key_of(sequence)
        self._by_age.append((self._num_pops + len(self._keys) + MAX_DISPLACEMENT, sequence))
        insort(self._keys, key)
        self._by_key[key] = sequence
        self._key_by_sequence[sequence] = key

    def pop(self) -> TokenSequence:
        """The oldest if it has been overtaken often enough, else the next of the sweep."""
        while self._by_age[0][1] not in self._key_by_sequence:
            self._by_age.popleft()
        due, oldest = self._by_age[0]
        if self._num_pops >= due:
            sequence = oldest
        else:
            self._cursor = self._nearest()
            self._served.append(self._cursor)
            sequence = self._by_key[self._cursor]
        self._num_pops += 1
        self.num_served_tokens += sequence.num_tokens
        self.remove(sequence)
        return sequence

    def _nearest(self) -> Key:
        """The next key of the sweep, or a key just served's neighbour that shares more with it.

        A request that arrives behind the cursor while its siblings run, or when they have ended,
        would else wait for the next sweep, when what it shares with them may be gone.
        """
        keys = self._keys
        best = keys[bisect_left(keys, self._cursor) % len(keys)]
        most = num_common_tokens(self._cursor[0], best[0])
        for served in self._served:
            place = bisect_left(keys, served)
            for key in keys[max(0, place - 1) : place + 1]:
                if (num := num_common_tokens(served[0], key[0])) > most:
                    best, most = key, num
        return best

    def remove(self, sequence: TokenSequence) -> bool:
        key = self._key_by_sequence.pop(sequence, None)
        if key is None:
            return False
        del self._by_key[key]
        del self._keys[bisect_left(self._keys, key)]
        return True


class WaitingQueue:
    """All waiting sequences.

    Args:
        order: "depth_first", or "fcfs" for the order of arrival.
    """

    def __init__(self, order: str = "depth_first") -> None:
        if order not in ORDERS:
            raise ParameterError(f"unknown order {order!r}; known: {', '.join(ORDERS)}")
        self._key_of = ORDERS[order]
        self._front: deque[TokenSequence] = deque()
        self._tenants: dict[str, _TenantQueue] = {}

    def __len__(self) -> int:
        return len(self._front) + sum(map(len, self._tenants.values()))

    def push(self, sequence: TokenSequence) -> None:
        """Queue a sequence in its tenant's order."""
        tenant = self._tenants.get(sequence.namespace.salt)
        if tenant is None:
            tenant = _TenantQueue(self._key_of)
            others = [each.num_served_tokens for each in self._tenants.values()]
            tenant.num_served_tokens = min(others, default=0)
            self._tenants[sequence.namespace.salt] = tenant
        tenant.push(sequence)

    def push_front(self, sequence: TokenSequence) -> None:
        """Put a sequence that was served before in front of all others."""
        self._front.appendleft(sequence)

    def pop(self) -> TokenSequence | None:
        """Remove and return the next sequence; None if none waits."""
        if self._front:
            return self._front.popleft()
        if not self._tenants:
            return None
        salt, tenant = min(self._tenants.items(), key=lambda pair: pair[1].num_served_tokens)
        sequence = tenant.pop()
        self._drop_if_empty(salt)
        return sequence

    def remove(self, sequence: TokenSequence) -> None:
        """Remove a sequence that will not run; an unknown one is ignored."""
        tenant = self._tenants.get(sequence.namespace.salt)
        if tenant is not None and tenant.remove(sequence):
            self._drop_if_empty(sequence.namespace.salt)
        elif sequence in self._front:
            self._front.remove(sequence)

    def _drop_if_empty(self, salt: str) -> None:
        if not len(self._tenants[salt]):
            del self._tenants[salt]
