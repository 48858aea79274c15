"""The number of alternatives to which lark expands a rule: each optional item doubles it."""

from __future__ import annotations

import lark
from lark.load_grammar import Grammar as LarkGrammar

from radixlang.constraints.specs import Grammar
from radixlang.errors import UnsupportedConstraintError
from radixlang.runtime.constraints.grammar.error_location import locate_symbol

MAX_ALTERNATIVES = 5_000
_WRITTEN_OUT = 50  # lark expands item~n..m up to this m, and nests rules beyond it


def refuse_many_alternatives(spec: Grammar, grammar: LarkGrammar) -> None:
    """Refuse a rule before lark expands it to more alternatives than fit into memory.

    Raises:
        UnsupportedConstraintError: a rule has too many; the message has its place.
    """
    for name, _, tree, _ in grammar.rule_defs:
        if _num_alternatives(tree) > MAX_ALTERNATIVES:
            message = (
                f"rule {name} has more than {MAX_ALTERNATIVES:,} alternatives once its optional "
                "items are written out; give some of them rules of their own"
            )
            raise UnsupportedConstraintError(locate_symbol(spec.text, name, message))


def _num_alternatives(tree: object) -> int:
    """An upper bound. `*` and `+` become separate rules, and count as one item here."""
    if not isinstance(tree, lark.Tree):
        return 1
    if tree.data == "expr":
        return _repeated(tree)
    counts = [_num_alternatives(child) for child in tree.children]
    if tree.data == "expansions":
        return _cut(sum(counts))
    if tree.data == "maybe":
        return _cut(1 + sum(counts))
    product = 1
    for count in counts:
        product = _cut(product * count)
    return product


def _repeated(tree: lark.Tree[lark.Token]) -> int:
    item, operator = tree.children[0], str(tree.children[1])
    num = _num_alternatives(item)
    if operator == "?":
        return num + 1
    if operator in ("*", "+"):
        return max(2, num)
    counts = [int(str(child)) for child in tree.children[2:]]
    least, most = counts[0], counts[-1]
    if most >= _WRITTEN_OUT:
        return max(2, num)
    return _cut(sum(num**times for times in range(least, most + 1)))


def _cut(num: int) -> int:
    return min(num, MAX_ALTERNATIVES + 1)  # so that nesting does not make long integers
