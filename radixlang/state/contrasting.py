"""`contrast(a, b, weight)`: one generation from the logits of two branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.errors import ParameterError
from radixlang.graph.nodes import Against, Contrasted, Gen, Ref
from radixlang.protocol import Contrast
from radixlang.state.expressions.builders import gen
from radixlang.state.expressions.items import GenItem
from radixlang.state.recording.adapting import adapted
from radixlang.state.state import State
from radixlang.suggestions import shortened

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.json_types import TypeForm
    from radixlang.keywords import GenKeywords


def contrast(
    a: State, b: State, weight: float, name: str | None = None, type: TypeForm | None = None, /,
    *, plausibility: float = 0.0, **options: Unpack[GenKeywords],
) -> None:  # fmt: skip
    """Append one generation to two branches, chosen by the logits of both, token by token.

        polite, plain = s.fork(2)
        polite += user("Answer politely: " + question) + assistant_begin()
        plain += user(question) + assistant_begin()
        contrast(polite, plain, 1.5, "answer", max_tokens=64)
        s += f"… {polite['answer']}"

    A token's logit is log p_b + weight * (log p_a - log p_b). So 1 is a alone, 0 is b alone, and
    above 1 leads away from b: classifier-free guidance for text (Sanchez et al. 2023,
    arXiv:2306.17806). With weight 1 + β and a plausibility it is contrastive decoding (O'Brien and
    Lewis 2023, arXiv:2309.09117). Biases, penalties, constraint and temperature are applied after
    it; `logprobs` are those of a.

    Args:
        a, b: two branches of one program. Both get the tokens, and the variable.
        weight: a finite number.
        name, type: as for `gen`.
        plausibility: from 0 to 1; drop tokens that a holds less likely than this share of its
            likeliest token, of those that the constraint leaves (Li et al. 2022,
            arXiv:2210.15097).
        options: as for `gen`, but n and think; `adapter` is a's. No prompt is healed.

    Raises:
        ParameterError: an option is unknown or out of range, or a and b are not two branches of
            one program.
    """
    item = _item(name, type, options)
    how = Contrast(weight, plausibility)
    for state in (a, b):
        if not isinstance(state, State):
            raise ParameterError(
                "contrast takes two branches, as in contrast(a, b, 1.5, 'x') after a, b = "
                f"s.fork(2); got {shortened(state)}"
            )
        state._check_goes_on()
    if a._block is b._block:
        raise ParameterError("contrast needs two branches, got one twice; fork it for the other")
    if a._host is not b._host:
        raise ParameterError("contrast needs two branches of one program, got two programs'")
    with adapted(a, item.adapter):
        _record(a, b, item, how)


def _item(name: Any, type: Any, options: Any) -> GenItem:  # as for `gen`, which checks
    found = gen(name, type, **options).items[0]
    assert isinstance(found, GenItem)
    if found.n > 1:
        raise ParameterError("a contrast makes one sample; fork both branches for each of n")
    if found.think is not None:
        raise ParameterError("a contrast writes no thought; append its tags as text")
    return found


def _record(a: State, b: State, item: GenItem, how: Contrast) -> None:
    host, location, slot = a._host, a._recorder.location(), a._new_slot()
    against = Against(b._block.id, how)
    node = Gen(slot, item.name, item.params, item.overrides, item.constraint, item.output,
               location, against=against)  # fmt: skip
    host.record(a._block, node)
    host.record(b._block, Contrasted(a._block.id, slot, item.name, location))
    ref = Ref(a._block.id, slot, item.name or "")
    for state in (a, b):
        state._variables.bind_generation(item.name, ref, item.constraint)
