"""8-bit layers: exact sums, rows that repeat bit for bit, rotations that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from radixlang.errors import ParameterError
from radixlang.kernels.native.library import Library
from radixlang.runtime.models.config import from_transformers
from radixlang.runtime.models.int8.build import build_int8_decoder
from radixlang.runtime.models.int8.linear import (
    Int8Product,
    Int8Rows,
    quantize_rows,
)
from radixlang.runtime.models.int8.ops import quantize
from radixlang.runtime.models.int8.rotation import (
    BlockHadamard,
    ResidualRotation,
    block_size,
    hadamard,
)
from radixlang.runtime.models.layers.linear import DenseLinear, TransposedLinear
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.weights import StateDictWeights
from radixlang.runtime.process.native_library import native_library

SHAPES = [(96, 64), (48, 200), (330, 576)]
SLICES = [(0, 1), (5, 6), (9, 10), (4, 7), (0, 17), (3, 50), (10, 58), (149, 150)]


def batch(num_columns: int) -> torch.Tensor:
    """Rows of very different sizes, with an outlier channel."""
    torch.manual_seed(2)
    x = torch.randn(150, num_columns)
    x[5] *= 50
    x[:, 7] *= 30
    x[9] = 0
    return x


def multiplied(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x Wᵀ in 8 bits."""
    quantized, scale = quantize(x)
    product: torch.Tensor = Int8Product(quantize_rows(weight))(quantized) * scale
    return product


@pytest.mark.parametrize("shape", SHAPES, ids=["96x64", "48x200", "330x576"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(shape: tuple[int, int]) -> None:
    quantized, _ = quantize(batch(shape[1]))
    product = Int8Product(quantize_rows(torch.randn(shape)))
    whole = product(quantized)
    for start, stop in SLICES:
        assert torch.equal(product(quantized[start:stop]), whole[start:stop])
    shuffled = torch.randperm(150)
    assert torch.equal(product(quantized[shuffled]), whole[shuffled])


@pytest.mark.parametrize("shape", SHAPES, ids=["96x64", "48x200", "330x576"])
def test_sums_are_those_of_integers(shape: tuple[int, int]) -> None:
    x, weight = batch(shape[1]), torch.randn(shape)
    rows, scale = quantize_rows(weight)
    quantized, peak = quantize(x)
    exact = (quantized.double() @ rows.double().t()) * scale.double() * (peak.double() / 127)
    torch.testing.assert_close(multiplied(weight, x).double(), exact, atol=1e-5, rtol=2e-6)


def test_quantized_values_are_the_nearest_and_a_row_of_zeros_stays_so() -> None:
    x = batch(64)
    quantized, peak = quantize(x)
    assert quantized.dtype == torch.int8
    assert int(quantized.abs().max()) == 127
    assert ((quantized * peak / 127 - x).abs() <= peak / 254 * 1.0001).all()
    assert not quantized[9].any()
    assert torch.isfinite(peak).all()


def test_error_is_that_of_eight_bits_and_fine_rows_have_less() -> None:
    x, weight = torch.randn(40, 256), torch.randn(64, 256)
    exact = x @ weight.t()
    coarse = (multiplied(weight, x) - exact).norm(dim=0) / exact.norm(dim=0)
    quantized, scale = quantize(x)
    out = Int8Product(quantize_rows(weight, (16, 48)))(quantized) * scale
    out[:, 16:48] += out[:, 64:]
    fine = (out[:, :64] - exact).norm(dim=0) / exact.norm(dim=0)
    assert coarse.max() < 0.02
    assert fine[16:48].mean() < 0.8 * coarse[16:48].mean()
    torch.testing.assert_close(fine[:16], coarse[:16])


def test_counts_its_bytes() -> None:
    product = Int8Product(quantize_rows(torch.randn(64, 128)))
    assert product.num_bytes == 64 * 128 + 64 * 4


@pytest.mark.parametrize("kind", [DenseLinear, TransposedLinear])
def test_float_layers(kind: Any) -> None:
    x, weight, bias = torch.randn(3, 16), torch.randn(8, 16), torch.randn(8)
    torch.testing.assert_close(kind(weight)(x), x @ weight.t())
    torch.testing.assert_close(kind(weight, bias)(x), x @ weight.t() + bias)
    assert kind(weight, bias).num_bytes == (8 * 16 + 8) * 4


@pytest.mark.parametrize("width", [1, 2, 64, 576, 640, 99])
def test_rotations_are_orthogonal(width: int) -> None:
    rotation = ResidualRotation(width)
    q = rotation.columns(torch.eye(width))
    torch.testing.assert_close(q @ q.t(), torch.eye(width), atol=1e-5, rtol=0)
    weight = torch.randn(5, width)
    torch.testing.assert_close(rotation.columns(weight), weight @ q, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotation.rows(weight.t()), q.t() @ weight.t(), atol=1e-5, rtol=1e-5)
    assert torch.equal(ResidualRotation(width).columns(torch.eye(width)), q)


def test_hadamard_blocks_undo_themselves() -> None:
    assert [block_size(width) for width in (1536, 576, 12, 7, 2048)] == [64, 64, 4, 1, 64]
    whole = hadamard(torch.eye(8), 8)
    torch.testing.assert_close(whole @ whole, torch.eye(8))
    blocks, x = BlockHadamard(96), torch.randn(3, 2, 96)
    torch.testing.assert_close(blocks(blocks(x)), x, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(blocks(x), x)


CONFIGS = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide": ("LlamaConfig", {"head_dim": 24, "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 6}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 6}),
}


def tiny(case: str) -> tuple[Any, Any, StateDictWeights]:
    torch.manual_seed(4)
    kind, options = CONFIGS[case]
    shape: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    config = getattr(transformers, kind)(**shape | options)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            weight.normal_(0, 0.2)
            if "norm" in name and not kind.startswith("Gemma"):
                weight.add_(1)
    ours = from_transformers(config, name=case, dtype="float32")
    source = StateDictWeights(theirs.state_dict(), case, post_norms=ours.post_norms)
    return theirs.eval(), ours, source


def unrounded_rows(weight: torch.Tensor, fine_rows: tuple[int, int] | None = None) -> Int8Rows:
    """All of a weight in the first rows, and nothing in the finer ones behind them."""
    num_fine = 0 if fine_rows is None else fine_rows[1] - fine_rows[0]
    finer = weight.new_zeros(num_fine, weight.shape[1])
    return Int8Rows(torch.cat((weight, finer)), torch.ones(len(weight) + num_fine))


def logits_of(
    case: str, forest: Callable[..., Any], library: Library | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    theirs, config, source = tiny(case)
    ids = torch.randint(0, 97, (2, 20))
    ids[:, :10] = ids[0, :10]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    model = build_int8_decoder(config, source, library=library)
    return forest(config).shared_prefix_logits(model, ids, 10), expected


@pytest.mark.parametrize("case", CONFIGS)
def test_folding_is_exact_when_nothing_is_rounded(
    case: str, forest: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unrounded(x: torch.Tensor, factor: torch.Tensor | None = None) -> Any:
        return x, torch.ones(len(x), 1) if factor is None else factor

    def dense(rows: Int8Rows, **_: Any) -> Any:
        return DenseLinear(rows.quantized)

    monkeypatch.setattr("radixlang.runtime.models.int8.build.quantize_rows", unrounded_rows)
    monkeypatch.setattr("radixlang.runtime.models.int8.ops.quantize", unrounded)
    monkeypatch.setattr("radixlang.runtime.models.int8.build.Int8Product", dense)
    found, expected = logits_of(case, forest)
    torch.testing.assert_close(found, expected, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("case", CONFIGS)
def test_rounding_moves_logits_little(case: str, forest: Callable[..., Any]) -> None:
    found, expected = logits_of(case, forest)
    assert not torch.equal(found, expected)
    assert float((found - expected).std() / expected.std()) < 0.05


@pytest.mark.parametrize("case", [case for case in CONFIGS if "head_dim" in CONFIGS[case][1]])
def test_the_native_library_computes_what_plain_operations_do(
    case: str, forest: Callable[..., Any]
) -> None:
    """But for the order of sums, which tips a value over to the next int8 now and then."""
    library = native_library()
    if library is None:
        pytest.skip("there is no C++ compiler, or RADIXLANG_NATIVE is empty")
    plain, expected = logits_of(case, forest)
    native, _ = logits_of(case, forest, library)
    assert not torch.equal(plain, native)
    assert float((plain - native).std() / expected.std()) < 0.03
    assert float((native - expected).std() / expected.std()) < 0.05


def test_logits_have_the_same_bits_alone_and_in_a_batch() -> None:
    _, config, source = tiny("llama")
    model = build_int8_decoder(config, source)
    hidden = torch.randn(60, config.hidden_size)
    whole = model.logits(hidden)
    assert all(torch.equal(model.logits(hidden[i : i + 1])[0], whole[i]) for i in range(60))


def test_int8_is_refused_off_the_cpu_or_out_of_float32(smollm2_path: Any) -> None:
    with pytest.raises(ParameterError, match=r"int8' runs on a CPU in float32.*bfloat16"):
        load_model(smollm2_path, dtype="bfloat16", quantization="int8")


@pytest.mark.model
def test_smollm2_is_served_in_int8_by_default_and_stays_close(
    smollm2_path: Any, forest: Callable[..., Any]
) -> None:
    """The bounds of benchmarks/quality.py, on one page of Python's reference."""
    from pydoc_data.topics import topics

    coarse, exact = load_model(), load_model(smollm2_path, quantization=None)
    assert (coarse.quantization, exact.quantization) == ("int8", None)
    assert coarse.model.num_weight_bytes < 0.55 * exact.model.num_weight_bytes
    ids = torch.tensor(exact.tokenizer.encode(topics["for"])[:192])
    tables = []
    for loaded in (exact, coarse):
        pool = forest(loaded.config, len(ids), loaded.model.library)
        slots = pool.alloc(len(ids))
        plan = pool.plan(slots[:0], [slots], [len(ids)])
        tables.append(pool.logits(loaded.model, ids, plan).log_softmax(-1))
    a, b = tables
    assert float((a.exp() * (a - b)).sum(-1).mean()) < 0.01
    assert float((a.argmax(-1) == b.argmax(-1)).float().mean()) > 0.95


@pytest.mark.parametrize("width", [1536, 640, 99])
def test_rotating_keeps_a_rows_bits_in_any_company_and_in_the_native_library(width: int) -> None:
    x, block = torch.randn(300, width), block_size(width, 128)
    plain, library = ResidualRotation(width), native_library()
    whole, turned = hadamard(x, block), plain.columns(x)
    for start, stop in [(0, 1), (5, 6), (3, 5), (0, 7), (2, 35), (10, 138)]:
        assert torch.equal(hadamard(x[start:stop], block), whole[start:stop])
        assert torch.equal(plain.columns(x[start:stop]), turned[start:stop])
    if library is not None:
        assert torch.equal(BlockHadamard(width, 128, library)(x), whole)
        assert torch.equal(ResidualRotation(width, library=library).columns(x), turned)
