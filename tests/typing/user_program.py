"""Programs as a user writes them, with types: both checkers find nothing to say about this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import assert_type

import radixlang
from radixlang import (
    MCTS,
    SMC,
    Beam,
    BestFirst,
    Choice,
    LogitsContext,
    NextToken,
    PackedTree,
    Rollout,
    SearchNode,
    SearchResult,
    SearchTree,
    State,
    TokenLogprob,
    assistant,
    gen,
    mean_logprob,
    search,
    select,
    user,
)
from radixlang.state.expressions.items import Expr
from radixlang.testing import FakeBackend


@dataclass
class City:
    name: str
    people: int


@radixlang.function
def greet(s: State, name: str, mood: Literal["kind", "formal"] = "kind") -> None:
    """Greet somebody."""
    s += user(f"Greet {name}, {mood}.") + assistant(gen("greeting", stop=".", max_tokens=8))
    s += gen("age", int, temperature=0) + select("size", [" big", " small"], scorer="greedy_token")


def less_of_it(context: LogitsContext) -> None:
    context.logits[context.token_ids.tolist()] -= 1.0


def numbered(index: int) -> str:
    return f"number {index}, "


@radixlang.function(name="survey")
async def survey(s: State, names: list[str]) -> dict[str, int]:
    group = s.fork(len(names), on_error="collect")
    group += [f"{name} is " for name in names]
    group += numbered
    group += gen("age", int)
    ages = s.join(group, "age", missing="raise")
    call = await s.acall(greet, "Ada")
    assert_type(await s.anext_token(), NextToken)
    s.call(greet, name="Grace", scope="vanish")
    return dict(zip(names, ages, strict=True)) | {"all": call.get("age", int)}


def made(s: State) -> None:
    """The value's type follows from an argument."""
    assert_type(gen("name"), Expr[str])
    assert_type(gen("name", regex="[a-z]+", finish="close"), Expr[str])
    assert_type(gen("age", int), Expr[int])
    assert_type(gen(float), Expr[float])
    assert_type(gen("city", City, max_tokens=64), Expr[City])
    assert_type(gen("call", tools=[greet.function]), Expr[radixlang.ToolCall])
    assert_type(select("size", ["big", "small"]), Expr[str])
    assert_type(s.get("age", int), int)
    assert_type(s.choice("size"), Choice)
    assert_type(s.next_token(among=[" yes", 5], top=2), NextToken)
    assert_type(s.fork(2).next_token(top=3)[0].shares, dict[str, float])
    s += gen("e", int, think=64, think_tags=("<think>", "</think>"), keep_thinking=True)
    s += gen("d", logit_bias={" yes": 2.0, 17: -1}, logits=less_of_it)
    s += "text" + gen("a") + gen("b", Literal["x", "y"]) + gen(None, n=2, top_p=0.9)
    radixlang.best_of(s, 3, gen("idea"), lambda branch: -len(branch["idea"]))
    radixlang.retry(s, lambda branch: branch.append("x"), times=2)


def run(runtime: FakeBackend) -> list[TokenLogprob]:
    assert_type(greet("Ada"), State)
    assert_type(greet.run(name="Ada", mood="formal"), State)
    greet(name="Ada", runtime=runtime, seed=3, timeout=2.5, check=False)
    greet(name="Ada", temperature=0, max_tokens=8, stop=["\n"])
    greet.with_options(top_p=0.9, max_total_tokens=100, runtime=runtime)(name="Ada")
    greet.bind(mood="formal").run("Ada")
    rows = [{"name": "Ada"}, {"name": "Grace"}]
    results = greet.run_batch(rows, runtime=runtime, max_workers=2, seed=1, progress=False)
    for result in survey.as_completed([{"names": ["Ada"]}], save_to="out.jsonl", logprobs=True):
        print(result["greeting"], result.error)
    for event in greet.stream("Ada"):
        print(event.name, event.text)
    state = greet.compile(mood="kind").run(name="Ada", seed=2)
    radixlang.verify_replay(greet, "run.json", runtime=runtime)
    assert_type(state.tree().flatten(), list[Rollout])
    assert_type(state.tree().flatten("once"), PackedTree)
    assert_type(state.tree().nodes[0].kind, Literal["given", "forced", "sampled"])
    params = radixlang.SamplingParams(temperature=0, stop=".")
    print(params.override(max_tokens=2).stop, results[0].values, radixlang.CompiledProgram)
    return list(state.completion("greeting").logprobs or ())


@radixlang.function
def searching(s: State) -> float:
    s += "Write a line: "
    result = search(
        s, gen("part", max_tokens=4), mean_logprob("part"), policy=SMC(8), depth=3, budget=24
    )
    assert_type(result, SearchResult)
    assert_type(result.best.children, list[SearchNode])
    tree = SearchTree(s, lambda branch: branch.append(gen("x")), lambda branch: len(branch.text()))
    assert_type(tree.finish(tree.grow([tree.root] * 2)[0]), State)
    for policy in (BestFirst(max_open=3), Beam(width=2), MCTS(exploration=0.5)):
        search(s, "text" + gen("x", int), lambda branch: branch.get("x", int), policy=policy)
    return result.mean(lambda node: node.value) + sum(each.weight for each in result.particles)


async def arun() -> None:
    assert_type(await survey.arun(["Ada"]), State)
    async for piece in greet.stream("Ada", seed=2).atext():
        print(piece)


def default_runtime() -> None:
    with radixlang.Runtime(device="cpu", max_running=8) as runtime:
        radixlang.set_default_runtime(runtime)
        assert_type(runtime.score(greet("Ada").tree().flatten()), list[tuple[float, ...]])
        print(runtime.stats().num_prompt_tokens)
