"""lm-evaluation-harness's command line, with the model `radixlang` known to it.

    python -m radixlang.evaluation run --model radixlang --tasks arc_easy --num_fewshot 3

Releases of the harness from 0.5 on find the model by its entry point: `lm_eval run` is the same.
"""

from __future__ import annotations

import sys

from radixlang.evaluation import harness


def main() -> None:
    """Run the harness's own command line."""
    from lm_eval.__main__ import cli_evaluate

    assert harness.RadixLM is not None  # its import has registered it
    sys.argv[0] = "python -m radixlang.evaluation"
    cli_evaluate()


if __name__ == "__main__":
    main()
