"""Prints the shape of what is shipped: `python tests/structure/shape.py`.

Files a folder, lengths of functions, circles of imports, files on the ways of the architecture
page, and uses of Any.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import test_any_count as any_count
import test_architecture_page as ways
import test_circles as circles


def function_lengths() -> list[int]:
    """Lines of every function, nested ones too, from `def` to its last line."""
    return sorted(
        node.end_lineno - node.lineno + 1
        for path in any_count.sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
    )


def main() -> None:
    paths = list(any_count.sources())
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    folders = Counter(str(path.parent.relative_to(any_count.ROOT)) for path in paths)
    lengths = function_lengths()
    found = any_count.count_any()
    top = folders.most_common(6)
    print(f"files {len(paths)}, lines {sum(lines):,}, longest file {max(lines)}")
    print("largest folders:", ", ".join(f"{name} {number}" for name, number in top))
    print(
        f"functions {len(lengths):,}: median {statistics.median(lengths):g}, "
        f"p90 {lengths[int(0.9 * len(lengths))]}, longest {lengths[-1]}"
    )
    print(f"circles of packages {len(circles.circles(circles.package_arrows()))}, "
          f"of files {len(circles.circles(circles.file_arrows()))}")  # fmt: skip
    shared = [name for name, owners in circles.class_owners().items() if len(owners) > 1]
    print(f"class names with two owners: {', '.join(shared) or 'none'}")
    for name, text in ways.WAYS.items():
        print(f"way {name.lower()}: {len(ways.stops(text))} files")
    print(f"Any {sum(found.values())}:", ", ".join(f"{k} {v}" for k, v in found.most_common(8)))
    aliases = any_count.aliases_of_any()
    uses = Counter(name for path in paths for name in
                   any_count.names_in(ast.parse(path.read_text(encoding="utf-8"))))  # fmt: skip
    print("uses of aliases that contain it:", ", ".join(f"{a} {uses[a]}" for a in sorted(aliases)))


if __name__ == "__main__":
    main()
