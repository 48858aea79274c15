"""The long run of the property test: pytest tests/runtime/cache --hypothesis-profile=long"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "long",
    max_examples=5000,
    stateful_step_count=200,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
