"""OpenAI's own client against the runtime: three questions at once, one streamed, one as JSON.

The server runs beside the program here; `radixlang serve` runs it alone. All conversations begin
with the same worked examples, which are computed once; the usage says what came from the cache.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import openai

import radixlang
from radixlang import savings
from radixlang.serving import serving

TALK = [
    {"role": "system", "content": "You teach geography and answer in one short sentence."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "What is the capital of Poland?"},
    {"role": "assistant", "content": "The capital of Poland is Warsaw."},
]
OPTIONS = {"model": "", "temperature": 0, "max_tokens": 24}
CITY = {"type": "object", "properties": {"capital": {"enum": ["Rome", "Oslo", "Lima"]}},
        "required": ["capital"], "additionalProperties": False}  # fmt: skip


def asked(country: str) -> list[dict[str, str]]:
    return [*TALK, {"role": "user", "content": f"What is the capital of {country}?"}]


def main() -> None:
    with radixlang.Runtime() as runtime, serving(runtime) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        chat = client.chat.completions

        for chunk in chat.create(messages=asked("Italy"), stream=True, **OPTIONS):
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
        with ThreadPoolExecutor() as pool:
            replies = pool.map(
                lambda country: chat.create(messages=asked(country), **OPTIONS),
                ("Japan", "Spain", "Egypt"),
            )
            for reply in replies:
                usage = reply.usage
                print(f"{reply.choices[0].message.content.strip()}  ({usage.prompt_tokens} prompt "
                      f"tokens, {usage.prompt_tokens_details.cached_tokens} cached)")  # fmt: skip
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        reply = chat.create(messages=asked("Italy"), response_format=form, **OPTIONS)
        print(json.loads(reply.choices[0].message.content))
        client.close()
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
