"""The table of keywords, and the parts of it for reading, rewriting and validating.

The order is that in which keywords are written: bounds before the type and the formats that they
narrow, keywords of the engine before those that need conjunctions.
"""

from __future__ import annotations

from radixlang.runtime.constraints.schema.keywords import (
    arrays,
    choices,
    numbers,
    objects,
    references,
    strings,
    values,
)
from radixlang.runtime.constraints.schema.keywords.entry import Keyword
from radixlang.runtime.constraints.schema.reading import ALL_TYPES
from radixlang.runtime.constraints.schema.rewriting import WritingRules
from radixlang.runtime.constraints.schema.validation import TestedKeyword

KEYWORDS: dict[str, Keyword] = {
    **numbers.KEYWORDS, **values.KEYWORDS, **objects.KEYWORDS, **arrays.KEYWORDS,
    **strings.KEYWORDS, "type": values.TYPE_KEYWORD, **references.KEYWORDS, **choices.KEYWORDS,
    **objects.LATE_KEYWORDS, **arrays.LATE_KEYWORDS, **references.LATE_KEYWORDS,
}  # fmt: skip

FORMS = {name: keyword.form for name, keyword in KEYWORDS.items()}
RULES = WritingRules(
    writings={name: k.write for name, k in KEYWORDS.items() if k.write is not None},
    when_skipped={
        name: k.when_skipped for name, k in KEYWORDS.items() if k.when_skipped is not None
    },
    refuses={name: k.refuses for name, k in KEYWORDS.items() if k.refuses},
    complements={name: k.complement for name, k in KEYWORDS.items() if k.complement is not None},
)
TESTS = {
    name: TestedKeyword(k.test, k.refuses or ALL_TYPES, k.is_late)
    for name, k in KEYWORDS.items()
    if k.test is not None
}
