"""lm-evaluation-harness's model `radixlang`: its requests as branches of one radix tree.

    lm = RadixLM(pretrained="model.gguf")
    lm_eval.simple_evaluate(lm, tasks=["arc_easy"], num_fewshot=3)

Token by token it asks what the harness's own model `hf` asks: the same tokenisation of context and
continuation, the same windows, the same chat template. A context is computed once for all its
continuations and a few-shot prompt once for all questions, whether or not it was cached before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

import radixlang
from radixlang.errors import ParameterError
from radixlang.evaluation import scoring
from radixlang.evaluation.scoring import ScoreRequest, TextRequest
from radixlang.protocol import Completion, Markup, Message, OptionScore
from radixlang.sampling_params import PARAM_NAMES, SamplingParams

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise ImportError(
        "lm-evaluation-harness is not installed; pip install 'radixlang[eval]'"
    ) from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from radixlang import Runtime

log = logging.getLogger("radixlang.evaluation")
_NOT_OURS = {"do_sample", "until", "max_gen_toks"}  # read apart from the sampling parameters


@register_model("radixlang")
class RadixLM(TemplateLM):  # type: ignore[misc]
    """A model of lm-evaluation-harness that runs on a Runtime.

    Args:
        pretrained: the model, as `Runtime` takes it: a folder, a GGUF file, a hub name, or a
            Runtime that is open already. None is the default model.
        max_length: most tokens that the model reads at once; by default its whole context.
        max_gen_toks: most tokens of a generation whose task names no number.
        prefix_token_id: the token before a text without context; by default the one that begins
            this model's texts, or else the one that ends them.
        seed: key of sampled generations; a request's index in its batch is added to it.
        batch_size, max_batch_size: accepted for the harness and not used: the engine batches by
            tokens (`max_batch_tokens`).
        device: as Runtime takes it. "cuda:0", the default of the harness, is a GPU
            where there is one.
        **options: those of Runtime: dtype, quantization, num_pages and the rest. The
            command line's "none" is None.

    Raises:
        ParameterError: an option is unknown, or does not go with an open Runtime.
    """

    def __init__(
        self,
        pretrained: str | Path | Runtime | None = None,
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        prefix_token_id: int | None = None,
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,  # checked by RuntimeConfig, against its fields
    ) -> None:
        super().__init__()
        self.runtime = _opened(pretrained, options | _device(device))
        self.owns_runtime = self.runtime is not pretrained
        longest = self.runtime.context_length
        self.max_length = longest if max_length is None else min(int(max_length), longest)
        self.max_gen_toks = max_gen_toks
        self._prefix_token_id = prefix_token_id
        self._seed = seed

    # ---- tokens

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.runtime.loaded.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        if self._prefix_token_id is not None:
            return self._prefix_token_id
        begins = self.runtime.tokenizer.config.bos_token_id
        return self.eot_token_id if begins is None else begins

    @property
    def tokenizer_name(self) -> str:
        """The model's name, for the harness's caches."""
        return self.runtime.model_name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Token ids of a prompt, special tokens recognised, with the token that begins a text if
        this model's texts have one (not with add_special_tokens=False)."""
        tokenizer = self.runtime.tokenizer
        text = Markup(string)
        if add_special_tokens is False:
            return tokenizer.encode(text)
        return tokenizer.encode_run([text], at_start=True)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own Jinja template; None if the harness is to use none."""
        return self.runtime.tokenizer.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation by the model's own template, with its default system text if it has
        one. Without a generation prompt the last message is left open, to be continued."""
        messages = [Message(each["role"], each["content"]) for each in chat_history]
        opened = "" if add_generation_prompt else messages.pop().content
        render = functools.partial(
            self.runtime.tokenizer.render_chat_unchanged, add_generation_prompt=True
        )
        try:
            return render(messages) + opened
        except ParameterError:
            if not any(message.role == "system" for message in messages):
                raise
            log.warning("the chat template takes no system message; it is left out")
            return render([message for message in messages if message.role != "system"]) + opened

    # ---- requests

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would write it."""
        encode = functools.lru_cache(maxsize=None)(self.tok_encode)
        pairs = [self._encoded(encode, *request.args) for request in requests]
        found = self._scores(pairs, disable_tqdm)
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, long ones in the harness's windows."""
        windows: list[ScoreRequest] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            own = self._windows(request.args[0])
            windows += own
            owners += [index] * len(own)
        totals = [0.0] * len(requests)
        for index, (total, _) in zip(owners, self._scores(windows, disable_tqdm), strict=True):
            totals[index] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts after the contexts, each up to its stop strings, which are not part of it."""
        asked = [self._text_request(index, *request.args) for index, request in enumerate(requests)]
        num_tokens = [len(self.tok_encode(request.args[0])) for request in requests]
        cuts = [max(0, n - len(each.context)) for n, each in zip(num_tokens, asked, strict=True)]
        scoring.warn_of_cuts(cuts, self.max_length)
        texts = [""] * len(requests)

        with tqdm(total=len(asked), desc="generating", disable=disable_tqdm) as bar:

            def done(index: int, completion: Completion) -> None:
                texts[index] = completion.text
                self.cache_hook.add_partial("generate_until", requests[index].args, texts[index])
                bar.update()

            scoring.generate_all(self.runtime, asked, done)
        return texts

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: object,
    ) -> list[tuple[float, bool]]:
        """As `loglikelihood`, for requests that are token ids already."""
        pairs = [ScoreRequest(tuple(each[1]), tuple(each[2])) for each in requests]
        return self._scores(pairs, disable_tqdm)

    def get_model_info(self) -> dict[str, object]:
        """What the harness notes of the model in its results."""
        loaded = self.runtime.loaded
        return {
            "model_name": self.runtime.model_name,
            "model_dtype": loaded.config.dtype,
            "model_quantization": loaded.quantization,
        }

    def close(self) -> None:
        """Close the runtime, if this object has opened it."""
        if self.owns_runtime:
            self.runtime.close()

    def _encoded(
        self, encode: Callable[[str], list[int]], context: str, continuation: str
    ) -> ScoreRequest:
        """Both as token ids, cut where the harness cuts them: blanks at the end of the context
        belong to the continuation, and its tokens are those beyond as many as the context has.

        Where the two merge into so few tokens that none is beyond, the continuation is what
        follows the last boundary that the context has with and without it.
        """
        inner = context.rstrip()
        ids = encode(inner) if inner else []
        if not ids:  # nothing, or blanks alone
            targets = self.tok_encode(context + continuation, add_special_tokens=False)
            if targets[:1] == [self.prefix_token_id]:
                return ScoreRequest(tuple(targets[:1]), tuple(targets[1:]))
            return ScoreRequest((self.prefix_token_id,), tuple(targets))
        whole = self.tok_encode(context + continuation)
        if len(whole) > len(ids) or whole == ids:
            return ScoreRequest(tuple(ids), tuple(whole[len(ids) :]))
        same = [a == b for a, b in zip(ids, whole, strict=False)]
        at = same.index(False) if False in same else len(same)
        return ScoreRequest(tuple(whole[:at]) or (self.prefix_token_id,), tuple(whole[at:]))

    def _scores(self, requests: list[ScoreRequest], silent: bool) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)

        fitting = scoring.truncated(requests, self.max_length)
        with tqdm(total=len(requests), desc="scoring", disable=silent) as bar:

            def done(index: int, score: OptionScore) -> None:
                found[index] = (score.total, all(score.is_greedy))
                bar.update()

            scoring.score_all(self.runtime, fitting, done)
        return found

    def _windows(self, text: str) -> list[ScoreRequest]:
        rolling = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [ScoreRequest(*map(tuple, make_disjoint_window(each))) for each in rolling]

    def _text_request(self, index: int, context: str, options: Mapping[str, Any]) -> TextRequest:
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(dict(options), self.max_gen_toks))
        room = self.max_length - wanted["max_gen_toks"]
        if room < 1:
            raise ParameterError(
                f"max_gen_toks={wanted['max_gen_toks']} leaves no room for a prompt in the "
                f"model's {self.max_length} tokens; ask for fewer"
            )
        ids = self.tok_encode(context) or [self.prefix_token_id]
        return TextRequest(tuple(ids[-room:]), self._params(wanted, self._seed + index))

    def _params(self, wanted: Mapping[str, Any], seed: int) -> SamplingParams:
        given = {name: value for name, value in wanted.items() if name in PARAM_NAMES}
        _warn_of_unused(tuple(sorted(set(wanted) - set(given) - _NOT_OURS)))
        stop = tuple(text for text in wanted["until"] if text)
        temperature = float(wanted.get("temperature", 0.0)) if wanted["do_sample"] else 0.0
        ours = {"stop": stop, "temperature": temperature, "max_tokens": wanted["max_gen_toks"]}
        return SamplingParams(**{"seed": seed, "heal": False, **given, **ours})


def _device(name: str | None) -> dict[str, str]:
    return {} if name in (None, "cuda:0") else {"device": str(name)}


def _opened(pretrained: str | Path | Runtime | None, options: dict[str, Any]) -> Runtime:
    if pretrained is None or isinstance(pretrained, (str, Path)):
        named: dict[str, Any] = {
            name: None if value == "none" else value for name, value in options.items()
        }
        return radixlang.Runtime(pretrained, **named)
    if options:
        raise ParameterError(
            f"{', '.join(options)} would be of a new runtime, and an open one was given"
        )
    return pretrained


@functools.cache
def _warn_of_unused(names: tuple[str, ...]) -> None:
    if names:
        log.warning("generation options that radixlang does not have are not used: %s", names)
