"""`lm_eval --model local-completions` against the server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest


def posted(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def test_the_tokenizer_is_the_model_s(serve: Callable[..., str], make_runtime: Any) -> None:
    runtime = make_runtime()
    url = serve(runtime)
    text = "<|im_start|>The theatre"
    ids = posted(f"{url}/tokenize", {"prompt": text})["tokens"]
    assert ids == [1, *runtime.encode("The theatre")]
    assert posted(f"{url}/detokenize", {"tokens": ids}) == {"prompt": text}
    with urllib.request.urlopen(f"{url}/tokenizer_info", timeout=60) as reply:
        info = json.load(reply)
    assert (info["bos_token"], info["eos_token"]) == (None, "<|endoftext|>")
    assert info["chat_template"] == runtime.tokenizer.chat_template


@pytest.mark.filterwarnings("ignore")
def test_lm_eval_scores_and_generates(serve: Callable[..., str], make_runtime: Any) -> None:
    """Its log-likelihoods are a branch's, its generations a branch's own."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from radixlang.sampling_params import SamplingParams

    runtime = make_runtime()
    url = serve(runtime)
    model = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model="tiny", tokenizer_backend="auto", max_retries=1
    )
    pairs = [("The theatre in the", " north"), ("Paris is the", " capital of France")]
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    for (context, ending), (total, is_greedy) in zip(
        pairs, model.loglikelihood(asked, disable_tqdm=True), strict=True
    ):
        branch = runtime.new_branch()
        branch.extend(context)
        (score,) = branch.score([runtime.encode(ending)]).result(60)
        branch.release()
        assert total == pytest.approx(score.total, abs=1e-3)
        assert is_greedy == all(score.is_greedy)
    options = {"until": ["\n"], "max_gen_toks": 6, "temperature": 0}
    asked = [Instance("generate_until", {}, ("The town", options), 0)]
    branch = runtime.new_branch()
    branch.extend("The town")
    params = SamplingParams(temperature=0, max_tokens=6, stop="\n", heal=False)
    expected = branch.generate(params).result(60).text
    branch.release()
    assert model.generate_until(asked, disable_tqdm=True) == [expected]
