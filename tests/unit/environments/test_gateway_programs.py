"""Real agent programs behind the gateway, each in an environment of its own, against a scripted policy."""

import asyncio
import json
import re
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

import pytest

from tests.fixtures.agent_programs import (
    ForkedBeforeTheEnd,
    GoneOnWith,
    LeftBehind,
    call,
    conversation_of,
    kill_environments,
    runs,
)
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, SideBySide
from verl_hier_plugins.environments.gateway import SPEC
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.workers.gateway import hier_workers

TASK = {"instruction": "What is the weather in Rome?", "answers": ["sunny in Rome"]}
AGENTS = {"manager": {"level": 0}, "searcher": {"level": 1, "tool": "searcher"}}


SAID = [
    "I ask. \n" + call("searcher", task="Find the weather in Rome", additional_args={}),
    "I look.\n " + call("weather", city="Rome"),
    call("final_answer", answer="it is sunny in Rome"),
    call("final_answer", answer="sunny in Rome"),
]
SMOLAGENTS = """
import os
from smolagents import OpenAIModel, ToolCallingAgent, tool

@tool
def weather(city: str) -> str:
    '''Weather.

    Args:
        city: The city.
    '''
    return f"sunny in {city}"

def play(task):
    model = OpenAIModel(os.environ["OPENAI_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    searcher = ToolCallingAgent([weather], model, name="searcher", description="Finds the weather.", max_steps=4)
    return str(ToolCallingAgent([], model, managed_agents=[searcher], max_steps=4).run(task["instruction"]))
"""
RENDERS = """
# Calls come back as text, as a framework renders them; its parts know nothing of each other.
import json, os, urllib.request

def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"properties": {"task": {}}}}}

def run(task, *functions):
    tools = [tool(name) for name in (*functions, "weather", "final_answer")]
    messages = [{"role": "system", "content": "You solve tasks."}, {"role": "user", "content": f"New task:\\n{task}"}]
    while True:
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps({"messages": messages, "tools": tools}).encode(),
            {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
        )
        said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
        (call,) = said["tool_calls"]
        given = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = given
        if call["function"]["name"] == "final_answer":
            return given["answer"]
        seen = run(given["task"]) if call["function"]["name"] == "searcher" else "sunny in " + given["city"]
        text = (said["content"] or "").strip()
        messages.append({"role": "assistant", "content": f"{text}\\nCalling tools:\\n{[call]}".strip()})
        messages.append({"role": "user", "content": f"Observation:\\n{seen}"})

def play(task):
    return run(task["instruction"], "searcher")
"""


NAMES_ITS_AGENTS = """
# As coding agents do: names that are drawn, an agent beside the one that began it, and a turn that nobody said.
import json, os, secrets, threading, urllib.request, uuid

ROOT = str(uuid.uuid4())

def ask(messages, *functions, **threads):
    headers = {name.replace("_", "-"): value for name, value in threads.items()}
    headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
    body = json.dumps({"messages": messages, "tools": [tool(name) for name in functions]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    return said

def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"properties": {"task": {}}}}}

def helper(task, name):
    messages = [{"role": "user", "content": f"You are in /tmp/home-{secrets.token_hex(4)}."}]
    messages += [{"role": "assistant", "content": "Thanks."}, {"role": "user", "content": task}]
    ask(messages, "weather", thread_id=name, x_codex_parent_thread_id=ROOT)

def play(task):
    messages = [{"role": "user", "content": f"Session {ROOT}. {task['instruction']}"}]
    for _ in range(3):
        said = ask(messages, "spawn", "wait", thread_id=ROOT)
        if not said.get("tool_calls"):
            return said["content"]
        (call,) = said["tool_calls"]
        given = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "spawn":
            name = str(uuid.uuid4())
            thread = threading.Thread(target=helper, args=(given["task"], name))
            text = json.dumps({"agent_id": name}) + f"\\nWall time: {secrets.randbelow(999)}.5"
        else:
            # The one that began it has gone on before it asks.
            thread.start()
            thread.join()
            text = "it is over" if given["target"] == name else f"there is no {given['target']}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
"""


OPENAI_AGENTS = """
import os
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("{api}")

@function_tool
def weather(city: str) -> str:
    "Weather."
    return f"sunny in {{city}}"

async def play(task):
    model = os.environ["OPENAI_MODEL"]
    searcher = Agent(name="searcher", instructions="You search.", model=model, tools=[weather])
    manager = Agent(name="manager", instructions="You lead.", model=model, {searcher})
    return (await Runner.run(manager, task["instruction"])).final_output
"""
AS_TOOL = [
    "I ask. \n" + call("searcher", input="Find the weather in Rome"),
    "I look.\n " + call("weather", city="Rome"),
    "it is sunny in Rome",
    "sunny in Rome",
]
HANDED = [call("transfer_to_searcher"), "I look.\n " + call("weather", city="Rome"), "sunny in Rome"]


LANGGRAPH = """
import os
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor

def weather(city: str) -> str:
    "Weather."
    return f"sunny in {{city}}"

def people(city: str) -> str:
    "People."
    return f"three millions in {{city}}"

def play(task):
    model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]{model})
    searcher = create_react_agent(model, [weather], name="searcher", prompt="You search.")
    counter = create_react_agent(model, [people], name="counter", prompt="You count.")
    team = create_supervisor([searcher, counter], model=model, prompt="You lead.", output_mode="{mode}").compile()
    said = team.invoke({{"messages": [{{"role": "user", "content": task["instruction"]}}]}})
    return str(said["messages"][-1].text)
"""
SUPERVISED = [
    call("transfer_to_searcher"),
    "I look.\n " + call("weather", city="Rome"),
    "it is sunny in Rome",
    call("transfer_to_searcher"),
    call("weather", city="Oslo"),
    "it is sunny in Oslo, too",
    call("transfer_to_counter"),
    call("people", city="Rome"),
    "three millions live there",
    "sunny in Rome",
]


def rolled_out(options, said=SAID, agents=AGENTS, sampler=None, unfinished=(), tokenizer=None):
    """The graph of one episode and the policy that played it: with these answers, or a function of the prompt.

    What an earlier step has left unfinished comes with the tokenizer of that step.
    """
    spec, answers = hier_workers(), None if callable(said) else iter(said)
    chosen = build_options(spec, {"name": "gateway", "agents": agents})

    async def main():
        pool = EnvironmentPool.of(SPEC, options, time_limit_s=120.0)
        try:
            policy = ScriptedPolicy(
                tokenizer or CharacterTokenizer(), lambda prompt, _: said(prompt) if answers is None else next(answers)
            )
            setup = RolloutSetup(
                {DEFAULT_POLICY: policy}, PlainRenderer(policy.tokenizer), pool, Limits(context_tokens=50_000), 0
            )
            request = Request(TASK, {"uid": "u", "index": 0}, 1, step=len(unfinished), unfinished=tuple(unfinished))
            rollout = Rollout(request, setup, lambda: spec.factory(chosen), Roles.of(spec, chosen))
            return await roll_out(rollout, sampler or SideBySide()), policy
        finally:
            await pool.close()

    return asyncio.run(main())


def check_tokens(graph, policy):
    """Each agent reads the tokens that it wrote."""
    for place, node in enumerate(graph.nodes):
        assert policy.prompts[place] == graph.prompt(node.id)
        if node.context >= 0:
            known = graph.prompt(node.context) + list(graph.nodes[node.context].action)
            assert graph.prompt(node.id)[: len(known)] == known


def check_manager_and_searcher(graph, policy, realigned=(0, 0, 1, 1)):
    """The searcher is a context under the turn that called it, and each agent reads the tokens that it wrote."""
    assert [episode.success for episode in graph.episodes] == [True]
    nodes = graph.nodes
    assert [(node.role, node.level, node.context) for node in nodes] == [
        ("manager", 0, -1), ("searcher", 1, -1), ("searcher", 1, 1), ("manager", 0, 0),
    ]  # fmt: skip
    assert [node.agent for node in nodes] == ["manager", "searcher.1", "searcher.1", "manager"]
    assert [node.extra["format"] for node in nodes] == [1, 1, 1, 1]
    assert [node.extra["answered"] for node in nodes] == [0, 0, 0, 1]
    assert [node.extra["access_calls"] > 0 for node in nodes][:2] == [False, True]
    assert not any(node.extra[name] for node in nodes for name in ("limit_failed", "repeat_failed"))
    assert [node.extra["agent_depth"] for node in nodes] == [0, 1, 1, 0]
    assert tuple(node.extra["realigned"] for node in nodes) == realigned
    assert [node.extra.get("failure") for node in nodes] == [None] * 4
    assert nodes[1].messages[0].sources == [0]
    check_tokens(graph, policy)


def options_of(folder, code, **more):
    (folder / "agent.py").write_text(textwrap.dedent(code))
    (folder / "tasks.jsonl").write_text(json.dumps(TASK))
    return GatewayOptions(
        agent="agent.py:play", folder=str(folder), data_path=str(folder / "tasks.jsonl"), preload=False, **more
    )


def counts_letters(prompt):
    """A policy that lets another agent count, waits for it by the name that it was told, and says what it has heard."""
    if "Thanks." in prompt:
        return "six"
    if "it is over" in prompt or "there is no" in prompt:
        return "sunny in Rome" if "it is over" in prompt else "lost"
    told = re.search(r'"agent_id": "([-\w]+)"', prompt)
    return call("wait", target=told[1]) if told else call("spawn", task="Count the letters of banana")


def test_an_agent_that_runs_beside_the_one_that_began_it_and_names_that_are_drawn_anew(tmp_path):
    agents = {"lead": {}, "helper": {"level": 1, "depth": 1}}
    options = options_of(tmp_path, NAMES_ITS_AGENTS)
    graph, policy = rolled_out(options, counts_letters, agents, ForkedBeforeTheEnd())
    assert [(episode.status, episode.success) for episode in graph.episodes] == [("finished", True)] * 2
    assert [(node.role, node.context) for node in graph.nodes if node.episode == 0] == [
        ("lead", -1), ("lead", 0), ("helper", -1), ("lead", 1),
    ]  # fmt: skip
    assert graph.nodes[2].messages[0].sources == [0]
    # The fork has drawn other names, and its prompts have those of the first run.
    assert policy.prompts[-1] == policy.prompts[-2]
    check_tokens(graph, policy)


def test_a_sub_agent_has_its_role_level_and_the_turn_that_called_it(tmp_path):
    check_manager_and_searcher(*rolled_out(options_of(tmp_path, RENDERS)))


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_an_agent_of_the_openai_sdk_that_is_a_tool_is_a_sub_agent(tmp_path, api):
    searcher = 'tools=[searcher.as_tool("searcher", "Finds the weather.")]'
    options = options_of(tmp_path, OPENAI_AGENTS.format(api=api, searcher=searcher))
    check_manager_and_searcher(*rolled_out(options, AS_TOOL), realigned=(0, 0, 0, 0))


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_an_agent_of_the_openai_sdk_hands_over(tmp_path, api):
    options = options_of(tmp_path, OPENAI_AGENTS.format(api=api, searcher="handoffs=[searcher]"))
    agents = {"manager": {"level": 0}, "searcher": {"level": 1, "begins": "You search."}}
    graph, policy = rolled_out(options, HANDED, agents)
    assert [episode.success for episode in graph.episodes] == [True]
    assert [(node.role, node.context) for node in graph.nodes] == [("manager", -1), ("searcher", -1), ("searcher", 1)]
    assert graph.nodes[1].messages[0].sources == [0]
    assert [node.extra.get("failure") for node in graph.nodes] == [None] * 3
    check_tokens(graph, policy)


def check_killed_and_resumed(options, said, agents=AGENTS):
    """A program that is killed in the middle is run again on its answers, and its conversations are the same."""
    whole, policy = rolled_out(options, said, agents)
    assert [episode.success for episode in whole.episodes] == [True]
    for turns in range(1, len(said)):
        left, _ = rolled_out(options, said, agents, LeftBehind(turns), tokenizer=policy.tokenizer)
        assert len(left.nodes) == turns
        unfinished = [*UnfinishedEpisode.left_in(left)]
        graph, _ = rolled_out(options, said[turns:], agents, GoneOnWith(), unfinished, policy.tokenizer)
        assert [(episode.error, episode.success) for episode in graph.episodes] == [(None, True)]
        assert conversation_of(graph) == conversation_of(whole)
    answers = iter(said)
    asked = 0

    def kills(prompt):
        nonlocal asked
        asked += 1
        if asked == len(said) - 1:
            kill_environments()
        return next(answers)

    graph, _ = rolled_out(options, kills, agents, tokenizer=policy.tokenizer)
    assert [(episode.error, episode.success) for episode in graph.episodes] == [(None, True)]
    assert conversation_of(graph) == conversation_of(whole)
    numbers = [*map(int, Path(options.folder, "runs").read_text().split())]
    # One whole run, two for each place at which it was left, and two for the process that was killed.
    assert len(numbers) == 1 + 2 * (len(said) - 1) + 2 and not any(map(runs, numbers))


NOTES_RUNS = 'import os\nopen("runs", "a").write(f"{os.getpid()}\\n")\n'


@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_a_program_of_the_openai_sdk_is_killed_and_resumed(tmp_path, api):
    searcher = 'tools=[searcher.as_tool("searcher", "Finds the weather.")]'
    code = NOTES_RUNS + OPENAI_AGENTS.format(api=api, searcher=searcher)
    check_killed_and_resumed(options_of(tmp_path, code), AS_TOOL)


@pytest.mark.slow
def test_a_program_that_renders_its_calls_anew_is_killed_and_resumed(tmp_path):
    check_killed_and_resumed(options_of(tmp_path, NOTES_RUNS + RENDERS), SAID)


def python_with(folder, *packages):
    """An interpreter that has these packages, installed from the registry; skips where that is not to be had."""
    python = folder / "venv" / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "install", "-q", *packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed here: {done.stderr.strip()[-200:]}")
    return str(python)


@pytest.mark.long
def test_smolagents_with_a_managed_agent_plays_to_its_end(tmp_path):
    python = python_with(tmp_path, "smolagents[openai]==1.26.0")
    check_manager_and_searcher(*rolled_out(options_of(tmp_path, SMOLAGENTS, python=python)))
    check_killed_and_resumed(options_of(tmp_path, NOTES_RUNS + SMOLAGENTS, python=python), SAID)


@pytest.mark.long
def test_the_agents_of_a_supervisor_of_langgraph_stand_under_the_turns_that_called_them(tmp_path):
    python = python_with(tmp_path, "langgraph==1.2.24", "langgraph-supervisor==0.0.31", "langchain-openai==1.7.4")
    agents = {
        "manager": {"level": 0},
        "searcher": {"level": 1, "begins": "You search."},
        "counter": {"level": 1, "begins": "You count."},
    }
    for model, mode in product(("", ", use_responses_api=True"), ("last_message", "full_history")):
        options = options_of(tmp_path, LANGGRAPH.format(model=model, mode=mode), python=python)
        graph, policy = rolled_out(options, SUPERVISED, agents)
        assert [(episode.error, episode.success) for episode in graph.episodes] == [(None, True)]
        check_tokens(graph, policy)
        nodes = graph.nodes
        assert [(node.role, node.level) for node in nodes] == [
            ("manager", 0), ("searcher", 1), ("searcher", 1), ("manager", 0), ("searcher", 1), ("searcher", 1),
            ("manager", 0), ("counter", 1), ("counter", 1), ("manager", 0),
        ]  # fmt: skip
        assert [node.extra["edited"] for node in nodes] == [0] * len(nodes)
        assert [node.extra.get("failure") for node in nodes] == [None] * len(nodes)
        # With the full history the searcher goes on where it was; with the last message alone it begins anew.
        again = (-1, [3]) if mode == "last_message" else (2, [])
        contexts = [(node.context, list(node.messages[0].sources)) for node in nodes]
        assert contexts == [
            (-1, []), (-1, [0]), (1, []), (0, []), again, (4, []), (3, []), (-1, [6]), (7, []), (6, []),
        ]  # fmt: skip
