"""For developers, and not in the wheel: benchmarks, ahead-of-time compilation, random forests."""

__all__ = [
    "bench",
    "bench_baselines",
    "bench_flashinfer",
    "bench_goals",
    "bench_shapes",
    "check",
    "compiled",
    "forests",
    "variants",
]
