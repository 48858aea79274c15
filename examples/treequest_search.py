"""TreeQuest drives the tree: its AB-MCTS says where to grow, a branch grows there.

TreeQuest asks for a state and a score after a parent's. Here a state is the index of a node of our
SearchTree, since TreeQuest copies states. What nodes share is computed once, and the program goes
on from the best. Needs `pip install treequest`.
"""

from __future__ import annotations

import treequest

import radixlang
from radixlang import SearchTree, gen, savings

FACTS = """\
Fact: Honey never spoils. Five words or fewer: Honey lasts for ever.
Fact: Octopuses have three hearts. Five words or fewer: Octopuses own three hearts.
Fact: Bananas float in water. Five words or fewer:"""


def value(branch):
    """From 0 to 1: the words of the fact, in few words."""
    words = branch["line"].split()
    found = sum(word in branch["line"] for word in ("Bananas", "float", "water"))
    return found / 3 * (1.0 if len(words) <= 5 else 5 / len(words))


@radixlang.function
def shorten(s, budget=12):
    s += FACTS
    step = gen("line", max_tokens=12, stop="\n", temperature=0.8)
    tree = SearchTree(s, step + "\nShorter:", value)

    def grow(parent):
        (node,) = tree.grow([tree.nodes[parent or 0]])
        return node.index, max(0.0, node.value)

    algorithm = treequest.ABMCTSA()
    state = algorithm.init_tree()
    for _ in range(budget):
        state = algorithm.step(state, {"shorten": grow})
    ((best, score),) = treequest.top_k(state, algorithm, k=1)
    tree.finish(tree.nodes[best])
    return score, tree.num_made, max(node.depth for node in tree.nodes)


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = shorten(runtime=runtime, seed=1)
        score, num_nodes, depth = state.result
        print(f"{state['line'].strip()}  (score {score:.2f}; {num_nodes} nodes, {depth} deep)")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
