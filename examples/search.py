"""Search: the same steps under four policies, and particles that obey a rule.

A node is a fork: what nodes share is computed once, a pruned node's memory is free at once. The
first program reaches a number by arithmetic moves, whose values are exact. The second writes a line
without the letter "e": particles that break the rule die, and others are forked in their place.
"""

from __future__ import annotations

import math

import radixlang
from radixlang import MCTS, SMC, Beam, BestFirst, gen, savings, search

MOVES = ["+ 1", "+ 5", "× 2", "× 3"]
SHOTS = """\
Reach 20 from 4: × 2 = 8, + 1 = 9, × 2 = 18, + 1 = 19, + 1 = 20.
Reach 33 from 2: + 5 = 7, × 3 = 21, + 5 = 26, + 5 = 31, + 1 = 32, + 1 = 33.
"""
GOAL = 47


def number(branch):
    """The number that a branch has reached."""
    return int(branch["now"])


def move(branch):
    branch += gen("move", choices=MOVES, temperature=4)
    sign, amount = branch["move"].split()
    now = number(branch) + int(amount) if sign == "+" else number(branch) * int(amount)
    branch["now"] = now
    branch += f" = {now}, "


@radixlang.function
def reach(s, policy, budget=100):
    s["now"] = 3
    s += f"{SHOTS}Reach {GOAL} from 3: "
    result = search(
        s, move, lambda branch: 1 / (1 + abs(GOAL - number(branch))), policy=policy,
        budget=budget, depth=6, is_complete=lambda branch: number(branch) == GOAL,
    )  # fmt: skip
    return [node.values["now"] for node in result.best.path[1:]], len(result.nodes)


@radixlang.function
def without_e(s):
    s += "A line about the sea: The"
    step = gen("part", max_tokens=2, temperature=0.9)
    result = search(
        s, step, lambda branch: -math.inf if "e" in branch.text()[25:] else 0.0,
        policy=SMC(24, resample_below=1.0), depth=6, budget=24 * 6,
    )  # fmt: skip
    return sum(node.value == -math.inf for node in result.nodes)


def main() -> None:
    with radixlang.Runtime() as runtime:
        for policy in (BestFirst(3), Beam(3, 3), MCTS(3), SMC(16)):
            numbers, num_nodes = reach(policy, runtime=runtime, seed=1).result
            path = " → ".join(map(str, [3, *numbers]))
            print(f"{type(policy).__name__:9} {path}  ({num_nodes} nodes)")
        state = without_e(runtime=runtime, seed=2)
        print(f"\n{state.text()}\n{state.result} particles died")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
