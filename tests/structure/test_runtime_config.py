"""`RuntimeConfig` is the one list of a runtime's options; its keywords are typed after it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest

from radixlang.errors import ParameterError
from radixlang.runtime.runtime_config import RuntimeConfig, RuntimeOptions


def test_keywords_are_the_fields_with_their_types() -> None:
    assert get_type_hints(RuntimeOptions) == get_type_hints(RuntimeConfig)


def test_every_field_is_told_of() -> None:
    text = RuntimeConfig.__doc__ or ""
    assert [each.name for each in fields(RuntimeConfig) if each.name not in text] == []


def test_keywords_go_over_a_given_configuration() -> None:
    base = RuntimeConfig(page_size=4, num_pages=64)
    changed = RuntimeConfig.of(base, {"page_size": 8})
    assert (changed.page_size, changed.num_pages) == (8, 64)
    assert RuntimeConfig.of(None, {}) == RuntimeConfig()
    with pytest.raises(FrozenInstanceError):
        base.page_size = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_sizes": 4}, "unknown Runtime parameter 'page_sizes'; did you mean 'page_size'?"),
        ({"zzz": 4}, "unknown Runtime parameter 'zzz'; known: device, dtype"),
        ({"model_path": "x"}, "unknown Runtime parameter 'model_path'; it is called 'model' here"),
        ({"tensor_parallel_size": 2}, "a model runs on one device here"),
        ({"eviction": "lur"}, "eviction 'lur' is unknown; did you mean 'lru'?"),
        ({"order": "lifo"}, "order 'lifo' is unknown; "),
        ({"context_length": "4k"}, "context_length must be an integer of at least 1, got '4k'"),
        ({"page_size": 0}, "page_size must be an integer from 1 to 256, got 0"),
        ({"max_running": True}, "max_running must be an integer of at least 1, got True"),
        ({"num_pages": 9, "kv_bytes": 9}, "as num_pages or as kv_bytes, not both"),
        ({"cold_tokens": 9, "deterministic": True}, "answers depend on time"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as found:
        RuntimeConfig.of(None, options)
    assert message in str(found.value)


def test_a_runtime_takes_a_configuration(make_runtime: Any) -> None:
    runtime = make_runtime(config=RuntimeConfig(max_running=3), page_size=2)
    assert (runtime.config.max_running, runtime.config.page_size) == (3, 2)
    assert runtime.config.num_pages == 4096
