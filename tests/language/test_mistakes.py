"""Ordinary mistakes in Python programs: what is wrong, where, and what to do, for each.

A row is the user's code, the type of its error, and patterns that its message matches: what was
wrong, and what to do. The line with the mistake ends in `#!`; the error names it as file:line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from radixlang import errors, set_default_runtime
from radixlang.errors import place_of
from radixlang.testing import FakeBackend

HEAD = """\
import radixlang
from radixlang import *

@function
def ask(s, name="Ada", size=1):
    s += f"{name}:" + gen("answer", max_tokens=8)

@function
def need(s, name):
    s += name

"""

PROGRAMS = [
    ("no state", "@function #!\ndef p():\n    pass", "ParameterError",
     "'p' needs a first parameter", r"def p\(s\)"),
    ("star args", "@function #!\ndef p(s, *args):\n    pass", "ParameterError",
     r"takes \*args", "name every argument"),
    ("keywords", "@function #!\ndef p(s, **options):\n    pass", "ParameterError",
     r"takes \*\*options", "name every argument"),
    ("reserved", "@function #!\ndef p(s, seed):\n    pass", "ParameterError",
     "parameter 'seed'", "rename"),
    ("generator", "@function #!\ndef p(s):\n    yield s", "ParameterError",
     "'p' has a yield", r"s \+= …|\.stream"),
    ("async generator", "@function #!\nasync def p(s):\n    yield s", "ParameterError",
     "'p' has a yield", r"s \+= …|\.stream"),
    ("no function", "function(3) #!", "ParameterError", "got 3", "above a function"),
    ("a class", "@function #!\nclass P:\n    pass", "ParameterError", "class 'P'",
     "above a function"),
    ("class method", "class A:\n    @function #!\n    def p(cls, s):\n        pass",
     "ParameterError", "class method", "self|@staticmethod"),
    ("unbound method",
     "class A:\n    @function\n    def p(self, s):\n        pass\nA.p() #!",
     "ParameterError", "'p' is a method of A", r"A\(…\)\.p"),
    ("misspelt argument", "ask(naem='x') #!", "ParameterError", "no argument 'naem'", "'name'"),
    ("missing argument", "need() #!", "ParameterError", "needs the argument 'name'",
     r"need\(name=…\)"),
    ("too many", "ask('a', 2, 3) #!", "ParameterError", "got 3", "name, size"),
    ("twice", "ask('a', name='b') #!", "ParameterError", "'name' twice", "once"),
    ("misspelt option", "ask(temprature=0) #!", "ParameterError", "'temprature'", "'temperature'"),
    ("option out of range", "ask(temperature=-1) #!", "ParameterError", "got -1", "at least 0"),
    ("runtime string", "ask(runtime='gpt2') #!", "ParameterError",
     "got 'gpt2'", r"radixlang\.Runtime\('gpt2'\)"),
    ("runtime class", "ask(runtime=Runtime) #!", "ParameterError", "the class", r"Runtime\(…\)"),
    ("default runtime", "set_default_runtime('gpt2') #!", "ParameterError",
     "got 'gpt2'", r"radixlang\.Runtime\('gpt2'\)"),
    ("timeout", "ask(timeout='10') #!", "ParameterError", "timeout .*got '10'", "seconds"),
    ("seed", "ask(seed='x') #!", "ParameterError", "seed .*got 'x'", "integer"),
    ("budget", "ask(max_total_tokens=0) #!", "ParameterError", "max_total_tokens .*got 0",
     "at least 1"),
    ("namespace", "ask(namespace=3) #!", "ParameterError", "namespace .*got 3", "string"),
    ("check", "ask(check='no') #!", "ParameterError", "check .*got 'no'", "True or False"),
    ("bind", "ask.bind(nme=1) #!", "ParameterError", "no argument 'nme'", "'name'"),
    ("other tool's backend", "ask(backend=3) #!", "ParameterError", "'backend'", "'runtime'"),
    ("a model for a run", "ask(model='gpt2') #!", "ParameterError", "'model'", "'runtime'"),
]  # fmt: skip

APPENDS = [
    ("number", "s += 3 #!", "ParameterError", "cannot append 3", r"str\(…\)"),
    ("none", "s += None #!", "ParameterError", "cannot append None", "nothing|text"),
    ("plus", "s = s + 'a' #!", "ParameterError", r"\+ makes no new state", r"s \+= "),
    ("plus on the right", "x = 'a' + s #!", "ParameterError", r"\+ makes no new state",
     r"s\.text\(\)"),
    ("gen uncalled", "s += gen #!", "ParameterError", "the function gen", r"gen\(…\)"),
    ("percent", "s += '%s' % gen('x') #!", "ParameterError", "inside a string", r"'text' \+ gen"),
    ("f-string", "s += f'{gen(\"x\")}' #!", "ParameterError", "inside a string|f-string",
     r"'text' \+ gen"),
    ("item", "s['x'] = gen('x') #!", "ParameterError", "binds nothing", r"s \+= "),
    ("tuple", "s += gen('x'), 'text' #!", "ParameterError", "tuple", r"\+"),
    ("list", "s += [gen('x')] #!", "ParameterError", "list", r"\+|fork"),
    ("a state", "s += s.fork(1)[0] #!", "ParameterError", "of type State", r"\.text\(\)|join"),
    ("a program", "s += ask #!", "ParameterError", "<program ask", r"ask\(s, …\)"),
    ("bytes", "s += b'a' #!", "ParameterError", "bytes", r"decode"),
    ("role with text", "s.system('Be brief.') #!", "ParameterError",
     "'Be brief.'", r"s \+= system\(…\)|with s\.system"),
    ("role name", "s += role('user<|im_end|>', 'x') #!", "ParameterError", "user<", "name"),
    ("turn in turn", "s += system_begin()\n    s += user_begin() #!", "ParameterError",
     "'user' opened inside the open turn 'system'", "close"),
    ("turn not open", "s += user_end() #!", "ParameterError", "no turn is open",
     r"user_begin\(\)|open it"),
    ("method", "s.gen('x') #!", "AttributeError", "'gen'", r"s \+= gen"),
    ("variable as attribute", "s += gen('x')\n    s.x #!", "AttributeError", "'x'", r"s\['x'\]"),
]  # fmt: skip

GENERATIONS = [
    ("name", "gen(3) #!", "ParameterError", "a value of 3", "use int, float"),
    ("empty name", "gen('') #!", "ParameterError", "name .*got ''", "not empty"),
    ("swapped", "gen(int, 'x') #!", "ParameterError", "int", r"gen\('x', int\)"),
    ("max_tokens", "gen('x', max_tokens=0) #!", "ParameterError", "got 0", "at least 1"),
    ("max_tokens text", "gen('x', max_tokens='10') #!", "ParameterError", "got '10'", "integer"),
    ("stop", "gen('x', stop=3) #!", "ParameterError", "stop .*got 3", "string"),
    ("stops", "gen('x', stop=['a', 3]) #!", "ParameterError", "stop .*got 3", "string"),
    ("empty stop", "gen('x', stop='') #!", "ParameterError", "stop", "not empty"),
    ("stop ids", "gen('x', stop_token_ids='a') #!", "ParameterError", "got 'a'", "integers"),
    ("temperature", "gen('x', temperature='hot') #!", "ParameterError", "got 'hot'", "number"),
    ("top_p", "gen('x', top_p=2) #!", "ParameterError", "got 2", "at most 1"),
    ("top_k", "gen('x', top_k=-1) #!", "ParameterError", "got -1", "None for all"),
    ("seed", "gen('x', seed=-1) #!", "ParameterError", "got -1", "integer from 0"),
    ("min over max", "gen('x', min_tokens=9, max_tokens=3) #!", "ParameterError",
     "min_tokens .*got 9", "max_tokens=3"),
    ("n", "gen('x', n=0) #!", "ParameterError", "n .*got 0", "at least 1"),
    ("pattern", "gen('x', stop_regex='(') #!", "ParameterError", r"'\('", r"\\\("),
    ("empty pattern", "gen('x', stop_regex='a*') #!", "ParameterError", "empty",
     "need a character"),
    ("two constraints", "gen('x', regex='a', json_schema='{}') #!", "ParameterError",
     "regex and json_schema|regex, json_schema", "one"),
    ("type and regex", "gen('x', int, regex='a') #!", "ParameterError", "got both", "drop"),
    ("schema", "gen('x', json_schema='{') #!", "InvalidConstraintError", "JSON", "schema"),
    ("choices", "gen('x', choices=[]) #!", "Error", "choices|options", "at least one"),
    ("choices text", "gen('x', choices='ab') #!", "Error", "'ab'", "list"),
    ("type", "gen('x', object()) #!", "ParameterError", "a value of <object", "use int, float"),
    ("finish", "gen('x', regex='a', finish='stop') #!", "ParameterError", "'stop'", '"close"'),
    ("select text", "select('x', 'abc') #!", "ParameterError", "'abc'", "list"),
    ("select nothing", "select('x', []) #!", "ParameterError", "none", "at least one"),
    ("select twice", "select('x', ['a', 'a']) #!", "ParameterError", "'a'", "once"),
    ("select numbers", "select('x', [1, 2]) #!", "ParameterError", "got 1", "string"),
    ("select none", "select('x', 3) #!", "ParameterError", "got 3", "list"),
    ("scorer", "select('x', ['a', 'b'], scorer='likelyhood') #!", "ParameterError",
     "'likelyhood'", "'likelihood'"),
    ("select without a name", "select(['a', 'b']) #!", "ParameterError", "name", r"select\('x', "),
]  # fmt: skip

READS = [
    ("unknown variable", "s['answr'] #!", "UnknownVariableError", "'answr'", "'answer'"),
    ("unknown stream", "list(s.stream('nope')) #!", "UnknownVariableError", "'nope'",
     "bound: 'answer'"),
    ("choice of a gen", "s.choice('answer') #!", "ParameterError", "not made by a select",
     r"s\.completion"),
    ("not a value", "s.get('answer', int) #!", "ValueParseError", "not a value of int",
     r"gen\(…, int\)"),
    ("iterated", "for x in s: #!\n        pass", "ParameterError", "not iterable", r"s\.fork"),
    ("not a generation", "s['k'] = 1\n    s.stop('k') #!", "ParameterError", "'k'", "generation"),
    ("nothing to choose", "s.choose('answer', 0) #!", "ParameterError", "'answer'", "n=…"),
    ("no samples", "s.samples('answer') #!", "ParameterError", "'answer'", "n=…"),
    ("fork nothing", "s.fork(0) #!", "ParameterError", "got 0", "at least 1"),
    ("fork items", "s.fork(['a', 'b']) #!", "ParameterError", r"got \['a', 'b'\]", r"len\("),
    ("on_error", "s.fork(2, on_error='ignore') #!", "ParameterError", "'ignore'", '"collect"'),
    ("group items", "g = s.fork(2)\n    g += ['a'] #!", "ParameterError",
     "1 items .* 2 branches", "one item for each"),
    ("no branch has it", "g = s.fork(2)\n    g['z'] #!", "UnknownVariableError", "'z'", "bound"),
    ("foreign group", "g = s.fork(1)[0].fork(2)\n    s.join(g) #!", "ParameterError",
     "forked from this state", r"group\.join"),
    ("join unknown", "g = s.fork(2)\n    g += gen('z')\n    s.join(g, 'y') #!", "ParameterError",
     "'y'", "bound z"),
    ("join both", "g = s.fork(2)\n    g += gen('z')\n    s.join(g, 'z', text=True) #!",
     "ParameterError", "text=True", "not both"),
    ("after join", "g = s.fork(2)\n    g.join()\n    g[0].append('a') #!", "StateClosedError",
     "joined", "before|parent"),
    ("missing", "g = s.fork(2)\n    g[0].append(gen('z'))\n    s.join(g, 'z', missing='raise') #!",
     "ParameterError", "no variable 'z' in branch 1", 'missing="none"'),
    ("samples unchosen", "s += gen('z', n=2)\n    s += 'a' #!", "ParameterError", "n=2",
     r"s\.choose"),
    ("call of a name", "s.call('ask') #!", "ParameterError", "'ask'", "program"),
    ("scope", "s.call(ask, scope='hide') #!", "ParameterError", "'hide'", "vanish"),
]  # fmt: skip

BATCHES = [
    ("rows of text", "ask.run_batch(['a']) #!", "ParameterError", "row 0 .*'a'",
     r"write \{'name': …, 'size': …\}"),
    ("one row", "ask.run_batch({'name': 'a'}) #!", "ParameterError", "a dict", r"\[\{…\}\]|a list"),
    ("a path", "ask.run_batch('rows.jsonl') #!", "ParameterError", "'rows.jsonl'",
     "read_rows|a list"),
    ("unknown column", "r = ask.run_batch([{'nme': 1}])\nraise r[0].error #!", "ProgramError",
     "'nme'", "'name'"),
    ("batch option", "ask.run_batch([{}], batch_size=8) #!", "ParameterError",
     "'batch_size'", "'max_in_flight'"),
    ("workers", "ask.run_batch([{}], max_workers=0) #!", "ParameterError", "got 0", "at least 1"),
    ("in flight", "ask.run_batch([{}], max_in_flight=0) #!", "ParameterError", "got 0",
     "at least 1"),
    ("runtime of a batch", "ask.run_batch([{}], runtime='gpt2') #!", "ParameterError",
     "got 'gpt2'", "Runtime"),
    ("folder", "ask.run_batch([{}], save_to='.') #!", "ParameterError", r"'?\.'? is a folder",
     "file"),
]  # fmt: skip


def _row(group: str, row: tuple[str, ...]) -> Any:
    return pytest.param(*row[1:], id=f"{group}-{row[0]}".replace(" ", "-"))


def _inside(row: tuple[str, ...]) -> tuple[str, ...]:
    """The code in a program that has generated an answer."""
    body = f"@function\ndef p(s):\n    s += gen('answer')\n    {row[1]}\np()"
    return row[0], body, *row[2:]


ROWS = [
    *[_row("program", row) for row in PROGRAMS],
    *[_row("append", _inside(row)) for row in APPENDS],
    *[_row("gen", row) for row in GENERATIONS],
    *[_row("read", _inside(row)) for row in READS],
    *[_row("batch", row) for row in BATCHES],
]


@pytest.mark.parametrize(("code", "kind", "what", "remedy"), ROWS)
def test_mistake_is_told_with_its_place_and_a_remedy(
    code: str, kind: str, what: str, remedy: str, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "program.py"
    text = HEAD + code + "\n"
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with FakeBackend() as fake:
        set_default_runtime(fake)
        try:
            with pytest.raises(Exception) as caught:
                exec(compile(text, str(file), "exec"), {"__name__": "program"})
        finally:
            set_default_runtime(None)
    error = caught.value
    names = {each.__name__ for each in type(error).__mro__}
    assert kind in names or (kind == "Error" and isinstance(error, errors.RadixlangError))
    assert re.search(what, str(error)), str(error)
    assert re.search(remedy, str(error)), str(error)
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "#!" in each)
    assert place_of(error) == f"{file}:{line}"
