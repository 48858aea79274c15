"""Tree of thought, four levels deep: two moves tried at every node, 30 generations, 16 leaves.

The puzzle: from a start, reach a target in four moves. The model proposes the moves, each with a
thought before it; a branch may only take moves that its sister may not, so the tree spreads. The
moves are checked in Python, so the answer printed is right whatever the model thought of.
Every level of the tree is a level of the radix tree: no path is computed twice.
"""

from __future__ import annotations

import radixlang
from radixlang import gen, savings, select

START, TARGET, DEPTH = 3, 31, 4
MOVES = {"add 5": lambda n: n + 5, "double it": lambda n: n * 2,
         "subtract 1": lambda n: n - 1, "add 9": lambda n: n + 9}  # fmt: skip
RULES = f"""\
Number puzzle. Start at {START} and reach {TARGET} in {DEPTH} moves.
The moves are: {", ".join(MOVES)}.

The number is {START}.
"""


@radixlang.function
def search(s):
    s += RULES
    return grow(s, START, (), [])


def grow(s, number, path, leaves):
    """Two branches below this state, each with half of the moves; all leaves in the end."""
    if len(path) == DEPTH:
        leaves.append((number, path))
        return leaves
    names = list(MOVES)
    group = s.fork(2)
    for branch, allowed in zip(group, (names[:2], names[2:]), strict=True):
        branch += "Thought: we have to" + gen("thought", temperature=0, max_tokens=10, stop="\n")
        branch += "\nMove: " + select("move", allowed)
    for branch in group:  # both are on their way before either is waited for
        move = branch["move"]
        result = MOVES[move](number)
        branch += f"\nThe number is {result}.\n"
        grow(branch, result, (*path, move), leaves)
    return leaves


def main() -> None:
    with radixlang.Runtime() as runtime:
        leaves = search(runtime=runtime).result
        print(f"from {START} to {TARGET} in {DEPTH} moves, {len(leaves)} leaves")
        for number, path in sorted(leaves, key=lambda leaf: abs(leaf[0] - TARGET))[:3]:
            mark = "✓" if number == TARGET else f"off by {abs(number - TARGET)}"
            print(f"  {number:>3}  {', '.join(path)}  {mark}")
        print(f"\n{savings(runtime, tree=True, max_lines=24)}")


if __name__ == "__main__":
    main()
