"""Hostile output of designers and executors: refused by name, counted, never run, never a crash."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.corridor import Corridor
from verl_hier.graph import build_table
from verl_hier.graph.columnar.light import light_of
from verl_hier.rollout.task import Limits as EpisodeLimits
from verl_hier.testing.rollout import CharacterTokenizer, WordTokenizer, roll_out_scripted
from verl_hier.training.metrics import rollout_metrics
from verl_hier_plugins.samplers.designs import Designs, DesignsOptions
from verl_hier_plugins.workers.designer_executor import hier_workers
from verl_hier_plugins.workers.designer_executor.design import (
    FAILURES,
    OF_GRAPHS,
    Call,
    Choice,
    DesignError,
    Leave,
    Loop,
    Role,
)
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions, RoleOptions
from verl_hier_plugins.workers.designer_executor.script import Limits, read
from verl_hier_plugins.workers.react import parse_action

LIMITS = Limits(roles={"solver": Role("solver", tools=("act",)), "critic": Role("critic")}, tools=("act", "go"))
OUTPUTS = 4_000

NAMED = {
    "a" * 20_000: "too_long",
    "a;" * 2500: "too_long",
    "solver(" * 60: "syntax",
    "(" * 3000: "syntax",
    "solver('": "syntax",
    "solver\n  critic": "syntax",
    "\0": "syntax",
    "\ud800": "syntax",
    "if 'a' in critic: if 'b' in critic: solver": "syntax",
    "range(" + "9" * 5000 + ")": "syntax",
    "not " * 3000 + "solver": "too_deep",
    "if 'a' in critic:\n solver\n" + "elif 'b' in critic:\n solver\n" * 50: "too_deep",
    "\n".join(" " * i + "for i in range(1):" for i in range(40)) + "\n" + " " * 40 + "solver": "too_deep",
    "import os": "import",
    "from os import *": "import",
    "__import__('os')": "import",
    "def f(): solver()": "function",
    "class A: pass": "function",
    "x = lambda: solver()": "function",
    "def f(): f()": "recursion",
    "designer()": "recursion",
    "designer write another script": "recursion",
    "while True: solver": "unbounded_loop",
    "for x in solver: critic": "unbounded_loop",
    "for x in range(n): solver": "unbounded_loop",
    "for i in range(-1): solver": "unbounded_loop",
    "for i in range(True): solver": "unbounded_loop",
    "for i in range(99): solver": "too_many_steps",
    "for i in range(9):\n  for j in range(9): solver": "too_many_steps",
    "for i in range(1000000000): pass\nsolver": "too_many_steps",
    "solver ; " * 17: "too_many_steps",
    "\n".join(f"r{i} = Role('x')" for i in range(9)) + "\nr0": "too_many_roles",
    "solver = Role('mine')": "bad_role",
    "stop = Role('mine')": "bad_role",
    "a = Role()": "bad_role",
    "a = Role('x', context='mine')": "bad_role",
    "a = Role('x', turns=True)": "bad_role",
    "a = Role('x', turns=1000)": "bad_role",
    "a = Role('x', **b)": "bad_role",
    "a = Role('x', tools='act')": "bad_role",
    "é = Role('x')": "bad_role",
    "if 'a' in critic:\n  a = Role('x')": "bad_role",
    "poet": "unknown_role",
    "poet write a verse": "unknown_role",
    "print('hello')": "unknown_role",
    "a = Role('x', tools=['rm'])": "unknown_tool",
    "a = Role('x', tools=[['act']])": "unknown_tool",
    "solver(verdict)": "unknown_name",
    "if 'a' in verdict: solver": "unknown_name",
    "eval('1')": "forbidden",
    "exec('import os')": "forbidden",
    "solver.__class__": "forbidden",
    "solver.__class__()": "forbidden",
    "solver(f'{critic.__class__}')": "forbidden",
    "solver(f'{critic:>99999999}')": "forbidden",
    "solver(a=1)": "forbidden",
    "solver(*critic)": "forbidden",
    "solver(1)": "forbidden",
    "solver('a' * 10**9)": "forbidden",
    "[solver() for i in range(3)]": "forbidden",
    "x = y = solver()": "forbidden",
    "x = 1": "forbidden",
    "x += solver()": "forbidden",
    "break": "forbidden",
    "return solver()": "forbidden",
    "try: solver()\nexcept: pass": "forbidden",
    "with solver: pass": "forbidden",
    "if solver: critic": "forbidden",
    "if 'a' in critic in solver: critic": "forbidden",
    "global solver": "forbidden",
    "del solver": "forbidden",
    "await solver()": "forbidden",
    "(yield)": "forbidden",
    "": "empty",
    "   \n\n": "empty",
    "# nothing": "empty",
    "'solver'": "empty",
    "pass": "empty",
    "stop": "empty",
    "for i in range(0): solver": "empty",
    "for i in range(3): pass": "empty",
}


@pytest.mark.parametrize("text, name", NAMED.items(), ids=lambda value: repr(value[:30]))
def test_every_failure_has_its_name(text, name):
    with pytest.raises(DesignError) as caught:
        read(text, LIMITS)
    assert caught.value.name == name, caught.value


def test_the_names_are_all_tested():
    assert {*NAMED.values(), "missing", "cut", *OF_GRAPHS} == set(FAILURES)


def test_ten_megabytes_cost_nothing():
    started = time.process_time()
    for text in ("a" * 10_000_000, "é" * 10_000, "solver\n" * 1_500_000):
        with pytest.raises(DesignError) as caught:
            read(text, LIMITS)
        assert caught.value.name == "too_long"
    assert time.process_time() - started < 5


def test_tags_are_found_in_linear_time():
    started = time.process_time()
    assert parse_action("<action>" * 1_000_000, "action") is None
    assert parse_action("<action>x</action>" * 300_000, "action") == "x"
    assert time.process_time() - started < 10


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["<a>", "</a>", "b", " ", "\n", "<a", "a>"]), max_size=12).map("".join))
def test_tags_are_found_as_a_pattern_finds_them(text):
    found = re.findall("<a>(.*?)</a>", text, flags=re.DOTALL)
    assert parse_action(text, "a") == (found[-1].strip() if found else None)


# ---- texts that try -------------------------------------------------------------------------------------------------

PIECES = [
    *("solver", "critic", "poet", "designer", "stop", "Role", "range", "x", "i", "print", "__import__", "eval", "open"),
    *("import os", "from os import system", "def f():", "class A:", "lambda:", "while True:", "return", "yield"),
    *("for i in range(3):", "for i in range(", "if 'ok' in critic:", "elif 'a' not in x:", "else:", "break", "pass"),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "'''",
        ";",
        ":",
        "=",
        "==",
        ",",
        ".",
        "+",
        "-",
        "*",
        "**",
        "@",
        "!",
        "\\",
    ),
    *(
        "\n",
        "\n",
        "\n    ",
        "\n        ",
        "\t",
        " ",
        " ",
        "#",
        "```",
        "```python\n",
        "<design>",
        "</design>",
        "<|im_end|>",
    ),
    *(
        "os.system('rm -rf /')",
        "f'{solver}'",
        "f'{",
        "1",
        "9" * 40,
        "0x",
        "1e999",
        "é",
        "\u202e",
        "\0",
        "\ud800",
        "\x0c",
    ),
    *(
        "tools=['act']",
        "context='shared'",
        "turns=3",
        "go north",
        "the kitchen",
        "not",
        "and",
        "in",
        "is",
        "None",
        "...",
    ),
]
LINES = [
    *("solver", "critic()", "solver('go')", "solver find the key", "v = critic('look')", "critic(f'{v} {solver}', v)"),
    *("stop", "break", "pass", "import sys", "poet()", "designer()", "a = Role('x', tools=['act'])", "a", "x = 1"),
    *("b = Role('x', tools=['fly'])", "c = Role('x', context=1)", "def f(): f()", "solver(nothing)", "while 1: solver"),
    *("class A: pass", "f = lambda: solver()"),
]
HEADS = ["for i in range(2):", "for i in range(7):", "if 'ok' in critic:", "if 'x' not in v:", "for i in solver:"]
SOUND = [
    "solver ; critic ; solver",
    "solver find the apple\ncritic",
    "a = Role('go', tools=['go'], context='kept', turns=2)\nfor i in range(3):\n    v = a(f'{i} {critic}')\n"
    "    if 'ok' in v: break\n    else: critic('no', v)\n",
]


def hostile(rng: random.Random) -> str:
    """A text that looks like a script, or like something else, or was one before it was damaged."""
    kind = rng.randrange(7)
    if kind == 0:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(40)))
    if kind == 1:
        return " ".join(rng.choice(PIECES) for _ in range(rng.randrange(40)))
    if kind == 2:
        text = rng.choice(SOUND)
        for _ in range(rng.randrange(1, 5)):
            at, more = rng.randrange(len(text) + 1), rng.choice([*PIECES, ""])
            text = text[:at] + more + text[at + rng.randrange(4) :]
        return text
    if kind == 3:
        return rng.choice(PIECES) * rng.choice([1, 30, 500, 3000])
    if kind == 4:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(60)))
    depth, lines = 0, []
    for _ in range(rng.randrange(1, 8)):
        lines.append("    " * depth + rng.choice(LINES if rng.random() < 0.3 else LINES[:6]))
        if rng.random() < 0.3:
            lines.append("    " * depth + rng.choice(HEADS))
            depth += 1
            lines.append("    " * depth + rng.choice(LINES))
        depth = rng.randrange(depth + 1)
    return "\n".join(lines)


WATCHED = ("exec", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")
_seen: list[str] = []
_watching = False


def _audit(event: str, args: tuple) -> None:
    # For the line of a syntax error CPython looks for a file that is called as the source is.
    if _watching and event.startswith(WATCHED) and not (event == "open" and args[0] == "<unknown>"):
        _seen.append(event)


@pytest.fixture(scope="module")
def watch():
    """`watch(call)`: its result, and what the interpreter was made to do meanwhile (PEP 578 events)."""
    sys.addaudithook(_audit)

    def watch(call):
        global _watching
        _seen.clear()
        _watching = True
        try:
            return call(), list(_seen)
        finally:
            _watching = False

    return watch


def outcome(text: str) -> str:
    """The failure of a text, or "" when it is a sound design, whose promises are checked."""
    try:
        design = read(text, LIMITS)
    except DesignError as error:
        return error.name
    assert 1 <= design.steps <= LIMITS.max_steps
    pending = list(design.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, Call):
            assert statement.role in design.roles
        elif isinstance(statement, Loop):
            assert statement.times <= LIMITS.max_steps
            pending += statement.body
        elif isinstance(statement, Choice):
            pending += [*statement.then, *statement.otherwise]
        else:
            assert isinstance(statement, Leave)
    assert all({*role.tools} <= {"act", "go"} for role in design.roles.values())
    return ""


def test_the_watch_sees_what_it_should(watch):
    assert "exec" in watch(lambda: eval("1 + 1"))[1]
    assert "open" in watch(lambda: open(__file__).close())[1]
    assert watch(lambda: 1 + 1)[1] == []


def test_thousands_of_texts_are_read_and_nothing_is_run(watch):
    rng = random.Random(5)
    names = Counter()
    slowest = 0.0
    for _ in range(OUTPUTS):
        text = hostile(rng)
        started = time.process_time()
        name, events = watch(lambda text=text: outcome(text))
        slowest = max(slowest, time.process_time() - started)
        assert not events, (text, events)
        names[name] += 1
    # A text that is read in more than linear time takes minutes; a collection of garbage may take a second.
    assert slowest < 5.0
    # The generator reaches sound designs and most of what can be wrong.
    assert names[""] > 200 and set(names) >= set(FAILURES) - {
        *("missing", "cut", "too_deep", "too_many_roles"),
        *OF_GRAPHS,
    }


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join)))
def test_any_text_is_a_design_or_a_named_failure(text):
    assert outcome(text) in {"", *FAILURES}


# ---- through the whole worker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [{}, {"design_tag": "design", "action_tag": "action"}])
def test_hostile_episodes_end_and_are_counted(run, tags):
    rng = random.Random(7)
    roles = {"solver": RoleOptions(), "critic": RoleOptions(tools=(), context="shared")}
    options = DesignerExecutorOptions(roles=roles, tools=("act", "go"), turns=3, **tags)
    failures, said = Counter(), 0

    def answer(prompt, sampling):
        design = prompt.startswith("design")
        text = (rng.choice(SOUND) if design and rng.random() < 0.6 else hostile(rng))[:2000]
        tag = rng.choice(["design" if design else "action"] * 6 + ["delivery", "action", "design"])
        forms = ["<{0}>{1}</{0}>"] * 6 + ["<{0}>{1}", "</{0}>{1}<{0}>", "{1}"]
        return rng.choice(forms).format(tag, text) if tags else text

    for number in range(60):
        graph, _ = run(
            roll_out_scripted(
                environment=Corridor,
                worker=hier_workers(),
                options=options,
                sampler=Designs(DesignsOptions(designs=3, executions=2, failed=("drop", "keep")[number % 2])),
                answer=answer,
                n=6,
                seed=number,
                limits=EpisodeLimits(max_turns=40, max_tokens_per_turn=3000, context_tokens=100_000),
                tokenizer=CharacterTokenizer(),
            )
        )
        assert {e.status for e in graph.episodes} <= {"finished", "truncated", "pruned"}
        for node in graph.nodes:
            failure = node.extra.get("failure")
            assert node.valid or failure or node.level == 1
            if node.level == 0:
                assert node.extra["design_valid"] == int(failure is None)
                assert failure is None or failure.removeprefix("design_") in FAILURES
            failures[failure] += 1
        turns = Counter(e.id for e in graph.episodes for i in graph.path(e.id) if graph.nodes[i].level)
        assert all(count <= 16 * 3 for count in turns.values())
        counted = rollout_metrics(light_of([graph]))
        for failure in {node.extra.get("failure") for node in graph.nodes} - {None}:
            assert counted[f"hier/failures/{failure}"] == sum(n.extra.get("failure") == failure for n in graph.nodes)
        build_table([graph])
        said += len(graph.nodes)
    assert said > 500 and len(failures) > 8, failures


def test_a_turn_of_ten_megabytes(run):
    word = "a" * 10_000_000

    def answer(prompt, sampling):
        return word if prompt.startswith("design") == answer.designer else "solver ; solver"

    for answer.designer in (True, False):
        graph, _ = run(
            roll_out_scripted(
                environment=Corridor,
                worker=hier_workers(),
                options=DesignerExecutorOptions(turns=2),
                sampler=Designs(DesignsOptions(designs=2, executions=1)),
                answer=answer,
                n=2,
                tokenizer=WordTokenizer(),
            )
        )
        expected = "design_too_long" if answer.designer else "action_too_long"
        assert {n.extra.get("failure") for n in graph.nodes} - {None} == {expected}
