"""Writes the overloads of `radixlang/program/launching.py` from the keywords of `run`.

`python tests/typing/launch_overloads.py` writes the file; a test holds it to what this makes. Type
checkers cannot join a program's own parameters with more keywords, nor say that one of several
keywords is needed, so each common option has an overload that needs it and takes the others.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "radixlang" / "program" / "launching.py"
BEGIN = "    # one for each common option; written by tests/typing/launch_overloads.py\n"
END = "\n    # here the written ones end\n"
# options of which a call with other keywords for arguments has one at least
COMMON = ("runtime", "seed", "temperature", "max_tokens", "timeout", "check", "max_total_tokens",
          "namespace", "adapter")  # fmt: skip
SHORT = {"str | Iterable[str] | None": "Stops", "str | AdapterUse | None": "Adapting"}


def options() -> dict[str, str]:
    """Types of the options of `run` by name, as they are written where they are declared."""
    found: dict[str, str] = {}
    for file, name in (("keywords.py", "RunKeywords"), ("sampling_params.py", "SamplingKeywords")):
        tree = ast.parse((ROOT / "radixlang" / file).read_text(encoding="utf-8"))
        declared = next(each for each in ast.walk(tree)
                        if isinstance(each, ast.ClassDef) and each.name == name)  # fmt: skip
        for line in declared.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                kind = ast.unparse(line.annotation)
                found[line.target.id] = SHORT.get(kind, kind)
    return found


def overload(needed: str) -> str:
    """The overload that needs one option."""
    kinds = options()
    parameters = [f"{needed}: {kinds[needed]}"]
    parameters += [f"{name}: {kind} = ..." for name, kind in kinds.items() if name != needed]
    parts = ["self", "*args: object", *parameters, "**arguments: object"]
    glued = " ".join(part.replace(" ", "\0") + "," for part in parts)
    filled = textwrap.fill(glued, 92, break_long_words=False, break_on_hyphens=False)
    body = textwrap.indent(filled.replace("\0", " "), " " * 8)
    return f"    @overload\n    def __call__(\n{body}\n    ) -> R_co: ...  # fmt: skip\n"


def written(text: str) -> str:
    """The file's text with all overloads."""
    block = BEGIN + "".join(map(overload, COMMON)) + END
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: block, text, flags=re.DOTALL)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text(encoding="utf-8")), encoding="utf-8")
