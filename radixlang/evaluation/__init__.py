"""Models of other people's evaluation programs: lm-evaluation-harness (`radixlang[eval]`).

Knows how a harness asks for log-probabilities and texts, and turns its requests into branches.
Knows nothing of tasks and metrics; imports the harness only in `harness`.
"""
