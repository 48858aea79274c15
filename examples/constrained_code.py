"""Code under a grammar, tried on tests: many samples of one function, the first that passes wins.

The grammar allows one arithmetic expression over the function's own argument, so every sample
compiles and none can touch anything. Which of them is right, the tests say.
"""

from __future__ import annotations

import radixlang
from radixlang import gen, savings

GRAMMAR = r"""
start: term (OP term)? "\n"
term: "n" | NUMBER | "(n " SIGN " " NUMBER ")"
OP: " * " | " + " | " - " | " // "
SIGN: "+" | "-"
NUMBER: /[1-9][0-9]?/
"""
SHOTS = '''\
def triple(n):
    """Three times n."""
    return n * 3

def before(n):
    """One less than n."""
    return n - 1

def third(n):
    """n divided by three."""
    return n // 3

'''
TASKS = {
    "double": ("Two times n.", {1: 2, 5: 10, 9: 18}),
    "after": ("One more than n.", {0: 1, 7: 8}),
    "ten_times": ("Ten times n.", {1: 10, 4: 40}),
    "five_more": ("Five more than n.", {0: 5, 7: 12}),
}


@radixlang.function
def write(s, name, doc, tests, num_samples=32):
    s += f'{SHOTS}def {name}(n):\n    """{doc}"""\n    return '
    with s.fork(num_samples) as samples:
        samples += gen("body", grammar=GRAMMAR, temperature=1.3, max_tokens=16)
    bodies = dict.fromkeys(body.strip() for body in s.join(samples, "body"))
    return next((body for body in bodies if passes(body, tests)), None), len(bodies)


def passes(body, tests):
    return all(eval(body, {}, {"n": n}) == wanted for n, wanted in tests.items())


def main() -> None:
    with radixlang.Runtime() as runtime:
        for name, (doc, tests) in TASKS.items():
            body, num_tried = write(name=name, doc=doc, tests=tests, runtime=runtime, seed=2).result
            shown = f"return {body}  ✓ passes its tests" if body else "none passed its tests"
            print(f"{name}(n): {doc:<18} {num_tried} different bodies; {shown}")
        print(f"\n{savings(runtime, tree=True, max_lines=24)}")


if __name__ == "__main__":
    main()
