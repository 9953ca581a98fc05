"""Distillation: what the filters drop and count, what the student is told to say, and the loss mask of its data."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.corridor import Corridor
from verl_hier.cli.distill import distill as command
from verl_hier.coldstart.distill import Distillation, ExpertTeacher, ServedTeacher, Student, Weights, distill
from verl_hier.coldstart.expert_policy import Noise
from verl_hier.coldstart.filters import Filters
from verl_hier.environments.base import StepResult
from verl_hier.errors import HierError, RecipeError, RolloutError
from verl_hier.graph.nodes import Node
from verl_hier.host.part import Part
from verl_hier.host.specs import EnvironmentSpec, NoOptions, WorkerSpec
from verl_hier.rollout import Limits, Worker
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.served.policy import with_stop
from verl_hier.testing.rollout import WordTokenizer
from verl_hier_plugins.environments.alfworld import SPEC
from verl_hier_plugins.workers.chain_of_agents import WORKER, transcribe
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOptions
from verl_hier_plugins.workers.planner_executor import PlannerExecutorOptions
from verl_hier_plugins.workers.planner_executor import hier_workers as planner_executor
from verl_hier_plugins.workers.react import ReactOptions
from verl_hier_plugins.workers.react import hier_workers as react

PLANNER = Part(planner_executor(), PlannerExecutorOptions())
REACT = Part(react(), ReactOptions())
CHAIN = ChainOptions(prompt="task: {instruction} | {observation}")
PLACES = ChainOptions(prompt="task: {instruction} | {places} | {observation}")


def student(tokenizer, options=CHAIN, **limits) -> Student:
    room = Limits(**{"max_turns": 120, "max_tokens_per_turn": 64, "context_tokens": 1024, **limits})
    return Student(Part(WORKER, options), PlainRenderer(tokenizer), tokenizer, room)


def rows_in(folder):
    return parquet.read_table(folder / "data.parquet").to_pylist()


# ---- a scripted teacher on households --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain_tokenizer(options):
    from verl_hier.coldstart import collect_texts
    from verl_hier.coldstart.tiny import build_tokenizer

    return build_tokenizer(collect_texts(Part(SPEC, options), [Part(WORKER, PLACES)], walks=6))


@pytest.fixture
def households(options, chain_tokenizer, tmp_path):
    def run(noise=0.0, n=6, folder="out", limits=None, **plan):
        return distill(
            Distillation(
                environment=Part(SPEC, options),
                system=PLANNER,
                student=student(chain_tokenizer, PLACES, **(limits or {})),
                teacher=lambda messages: ExpertTeacher(Noise(random_action=noise, skip_stage=0.0)),
                n=n,
                limits=Limits(max_turns=120, context_tokens=10_000),
                **plan,
            ),
            tmp_path / folder,
        )

    return run


def test_a_planner_and_an_executor_become_one_sequence(households, tmp_path, chain_tokenizer):
    report = households()
    assert (report.played, report.kept, report.rows) == (6, 6, 6)
    assert not any(reasons for reasons in report.dropped.values())
    for row in rows_in(tmp_path / "out"):
        assert chain_tokenizer.unk_token_id not in row["input_ids"]
        before, _, said = row["text"].partition("<act> ")
        instruction = before.removeprefix("task : ").split(" |")[0]
        assert said.startswith(f"<think> {instruction} </think> <plan> find ")
        subgoals = said.partition("<plan> ")[2].partition(" </plan>")[0].split(" ; ")
        thoughts = [part.split(" </think>")[0] for part in said.split("<think> ")[2:]]
        assert list(dict.fromkeys(thoughts)) == subgoals, "each thought is the active subgoal, in order"
        assert said.count("<action>") == said.count("<observation>") + 1, "the last action wins"


def test_the_loss_is_on_everything_but_what_is_read(households, tmp_path, chain_tokenizer):
    households(noise=0.3, n=8)
    start, stop = (chain_tokenizer.convert_tokens_to_ids(tag) for tag in ("<observation>", "</observation>"))
    act = chain_tokenizer.convert_tokens_to_ids("<act>")
    for row in rows_in(tmp_path / "out"):
        reading = True
        for token, weight in zip(row["input_ids"], row["weights"], strict=True):
            reading = reading or token == start
            assert weight == (0.0 if reading else 1.0)
            reading = reading and token not in (stop, act)


def test_mistakes_and_readings_weigh_what_they_are_asked_to(households, tmp_path, chain_tokenizer):
    households(noise=0.4, n=8, weights=Weights(invalid_action=0.5, observation=0.25))
    rows = rows_in(tmp_path / "out")
    refused = 0
    for row in rows:
        parts = row["text"].split(" <action> ")[1:]
        weights = iter(
            row["weights"][i + 1]
            for i, token in enumerate(row["input_ids"])
            if token == chain_tokenizer.convert_tokens_to_ids("<action>")
        )
        for part in parts:
            failed = "<observation> nothing happens" in part
            refused += failed
            assert next(weights) == (0.5 if failed else 1.0)
        assert row["weights"][0] == 0.0 and row["weights"][1] == 0.25
    assert refused


def test_what_reflects_is_written_more_often(households, tmp_path):
    report = households(noise=0.3, n=10, filters=Filters(upsample=3))
    texts = [row["text"] for row in rows_in(tmp_path / "out")]
    reflecting = [text for text in texts if "<reflection> that failed" in text]
    assert 0 < report.reflecting < report.kept
    assert len(reflecting) == 3 * report.reflecting == 3 * len(set(reflecting))
    assert report.rows == len(texts) == report.kept + 2 * report.reflecting
    told = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    assert sum(episode["reflects"] for episode in told) == report.reflecting


def test_each_filter_drops_and_is_counted(households, tmp_path):
    with pytest.raises(RecipeError, match=r"nothing is left.*complexity: 4 \(few_activations 4\)"):
        households(n=4, filters=Filters(activations=1000), folder="a")
    with pytest.raises(RecipeError, match=r"few_calls 4"):
        households(n=4, filters=Filters(calls=1000), folder="b")
    with pytest.raises(RecipeError, match=r"dropped by format: 4 \(too_long 4\)"):
        households(n=4, limits={"context_tokens": 60}, folder="c")
    with pytest.raises(RecipeError, match=r"dropped by format: 4 \(too_long 4\)"):
        households(n=4, limits={"max_tokens_per_turn": 3}, folder="d")
    stored = json.loads((tmp_path / "d/report.json").read_text())
    assert stored["dropped"] == {"complexity": {}, "correctness": {}, "format": {"too_long": 4}}
    episodes = [json.loads(line) for line in (tmp_path / "d/episodes.jsonl").read_text().splitlines()]
    assert [episode["dropped"] for episode in episodes] == ["format: too_long"] * 4


def test_equal_seeds_make_equal_data(households, tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        households(noise=0.3, folder=folder, seed=seed)
    a, b, c = (rows_in(tmp_path / folder) for folder in "abc")
    assert a == b and a != c


# ---- a served teacher in a corridor ----------------------------------------------------------------------------------

CORRIDOR = EnvironmentSpec(
    name="corridor",
    factory=lambda options: Corridor(),
    tasks=lambda options, split: [{"instruction": word} for word in ("walk", "stray", "crash", "jump")],
)


def corridor(teacher, system=REACT, tokenizer=None, options=CHAIN, n=8, **plan) -> Distillation:
    return Distillation(
        environment=Part(CORRIDOR, NoOptions()),
        system=system,
        student=student(tokenizer or WordTokenizer(), options),
        teacher=teacher,
        n=n,
        limits=Limits(max_turns=6, max_tokens_per_turn=50, context_tokens=1000),
        **plan,
    )


def test_a_served_teacher_speaks_in_the_system(tmp_path):
    """One task is solved, one with a refused step, one never, and one request is refused by the server."""

    def answer(request):
        task = request["messages"][0]["content"]
        turns = sum(message["role"] == "assistant" for message in request["messages"])
        if "crash" in task:
            return 400
        if "stray" in task:
            return "left"
        if "jump" in task and turns == 1:
            return "jump"
        return "right"

    with Endpoint(answer) as served:
        report = distill(corridor(lambda m: ServedTeacher(served.url, "big", m), concurrency=3), tmp_path)
    assert report.dropped["complexity"] == {"few_activations": 2} and report.refused_requests == 2
    assert report.dropped["correctness"] == {"unfinished": 2}
    assert not report.dropped["format"] and (report.kept, report.reflecting, report.rows) == (4, 2, 6)
    assert all(r["model"] == "big" and r["max_tokens"] == 50 for r in served.requests)
    longest = max(served.requests, key=lambda r: len(r["messages"]))["messages"]
    assert [m["role"] for m in longest] == ["user", "assistant"] * 5 + ["user"]
    texts = [row["text"] for row in rows_in(tmp_path)]
    jumped = next(text for text in texts if "jump" in text)
    assert (
        "<action> jump </action> <observation> at 1 </observation> <think> jump </think> <reflection> that failed"
        in jumped
    )


CHAINED = ["<think>go", "<plan>right to the end", *["<think>on", "<action>right"] * 3]


@pytest.mark.parametrize("names_stop", [True, False])
def test_a_served_chain_of_agents_goes_on_in_its_own_message(tmp_path, names_stop):
    """The endpoint cuts off the closing tags, and says which or not; one episode forges an observation."""
    spoken = ChainOptions(prompt="{instruction}", system="agents")

    def answer(request):
        last = request["messages"][-1]
        said = (
            last["content"].count("</") - last["content"].count("</observation>") if last["role"] == "assistant" else 0
        )
        if request["messages"][1]["content"] == "stray" and said == 4:
            return "<observation>you won</observation>"
        opening = CHAINED[said]
        return f"{opening}</{opening[1:].partition('>')[0]}> and more"

    with Endpoint(answer, names_stop=names_stop) as served:
        plan = corridor(lambda m: ServedTeacher(served.url, "big", m), Part(WORKER, spoken), n=3, options=spoken)
        plan = Distillation(**{**vars(plan), "limits": Limits(20, 50, 1000), "filters": Filters(calls=1)})
        report = distill(plan, tmp_path)
    assert report.dropped["correctness"] == {"unfinished": 1} and report.kept == 2
    told = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert told[1]["ended"] == ("grammar: forged_observation" if names_stop else "empty_action")
    for request in served.requests:
        going_on = request["messages"][-1]["role"] == "assistant"
        assert [m["role"] for m in request["messages"]] == ["system", "user", *["assistant"] * going_on]
        assert request.get("continue_final_message", False) == going_on
        assert "</think>" in request["stop"]
    (text, _) = (row["text"] for row in rows_in(tmp_path))
    assert text.startswith("agents walk <act> <think> go </think> <plan> right to the end </plan> <think> on </think>")


@pytest.mark.parametrize("on_violation", ["end", "penalise"])
def test_what_breaks_the_grammar_is_no_data(tmp_path, on_violation):
    """An option of the student makes its grammar stricter than its telling; also where violations only cost."""
    strict = ChainOptions(grammar={"start": ("plan",)}, on_violation=on_violation)
    with (
        Endpoint(lambda request: "right") as served,
        pytest.raises(RecipeError, match=r"format: 4 \(grammar_transition 4\)"),
    ):
        distill(corridor(lambda m: ServedTeacher(served.url, "big", m), options=strict, n=4), tmp_path)


def test_rows_of_a_chat_model_are_one_assistant_message(tmp_path):
    """As its template writes it; the loss begins behind the head of the answer and leaves the observations out."""
    from verl_hier.chat.renderer import ChatRenderer

    tokenizer = AutoTokenizer.from_pretrained(write_byte_model(tmp_path / "model"))
    chat = Student(
        Part(WORKER, ChainOptions(prompt="{instruction}", system="agents")),
        ChatRenderer(tokenizer, "qwen2", {}),
        tokenizer,
        Limits(40, 200, 4000),
    )
    with Endpoint(lambda request: "right") as served:
        plan = corridor(lambda m: ServedTeacher(served.url, "big", m), n=1)
        distill(Distillation(**{**vars(plan), "student": chat}), tmp_path)
    (row,) = rows_in(tmp_path)
    pieces: dict[float, list[int]] = {0.0: [], 1.0: []}
    for token, weight in zip(row["input_ids"], row["weights"], strict=True):
        pieces[weight].append(token)
    head = "<|im_start|>system\nagents<|im_end|>\n<|im_start|>user\nwalk<|im_end|>\n<|im_start|>assistant\n"
    step, seen = "<think>walk</think><action>right</action>", "<observation>at {}</observation>"
    assert tokenizer.decode(pieces[1.0]) == 3 * step
    assert tokenizer.decode(pieces[0.0]) == head + seen.format(1) + seen.format(2)
    assert row["text"] == head + step + seen.format(1) + step + seen.format(2) + step


class Crew(Worker):
    """A worker of somebody's own: a scout, a runner and a judge take turns, each in a context of its own."""

    async def run(self, episode):
        step = await episode.reset()
        while not step.done:
            for role in ("scout", "runner", "judge"):
                turn = await episode.generate(episode.context(role, level=int(role != "scout")).observe(role))
                if role == "runner":
                    step = await episode.act(turn.text)
                    if step.done:
                        return


def test_each_turn_of_a_worker_without_stop_strings_is_one_text_with_its_end(tmp_path):
    """All texts went into the first turn, and no turn had an end that a policy could learn."""

    def tell(options, transcript):
        actions = [call.action for turn in transcript.turns for call in turn.calls]
        return [text for action in actions for text in ("look", action, "go on")]

    spec = WorkerSpec("crew", lambda options: Crew(), roles={"scout": 0, "runner": 1, "judge": 1}, transcribe=tell)
    tokenizer = WordTokenizer()
    with Endpoint(lambda request: "right") as served:
        plan = corridor(lambda m: ServedTeacher(served.url, "big", m), tokenizer=tokenizer, n=1)
        crew = Student(Part(spec, NoOptions()), PlainRenderer(tokenizer), tokenizer, Limits(20, 9, 99))
        report = distill(replace(plan, student=crew), tmp_path)
    assert report.kept == 1 and not report.dropped["format"]
    rows = rows_in(tmp_path)
    assert [row["role"] for row in rows] == ["scout", "runner", "judge"] * 2 + ["scout", "runner"]
    for row in rows:
        trained = [token for token, weight in zip(row["input_ids"], row["weights"], strict=True) if weight]
        said = {"scout": "look", "runner": "right", "judge": "go on"}[row["role"]]
        assert tokenizer.decode(trained[:-1]) == said and trained[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "given, words",
    [
        ({"teacher": "gpt"}, "give `expert` or the URL"),
        ({"teacher": "http://127.0.0.1:9/v1"}, "--teacher-model is missing"),
        ({"model": "/nowhere"}, "--model: '/nowhere' is neither a folder here.*verl-hier tiny"),
        ({"system": "nobody"}, "there is no recipe 'nobody'"),
    ],
)
def test_a_wrong_call_is_one_sentence(given, words, chain_tokenizer, tmp_path):
    chain_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    small = ["hier.environment.pool=2", "hier.environment.validation=2"]
    with pytest.raises(HierError, match=words):
        command("chain_of_agents_alfworld", small, out=tmp_path, **{"model": str(tmp_path / "model"), "n": 1, **given})


def test_a_teacher_that_is_gone_is_one_sentence(tmp_path):
    pytest.importorskip("openai")
    with pytest.raises(RolloutError, match="does not answer"):
        distill(corridor(lambda m: ServedTeacher("http://127.0.0.1:9/v1", "big", m, timeout_s=1)), tmp_path)
    with Endpoint(lambda request: 404) as served, pytest.raises(RolloutError, match="refuses 'small'"):
        distill(corridor(lambda m: ServedTeacher(served.url, "small", m)), tmp_path)


def test_what_cannot_be_distilled_is_said(tmp_path, options):
    with pytest.raises(RecipeError, match="'react' cannot transcribe episodes of other workers"):
        Student(REACT, None, None, Limits())
    unscored = EnvironmentSpec(name="prompt", factory=lambda o: Corridor())
    plan = corridor(lambda m: ExpertTeacher(Noise()))
    with pytest.raises(RecipeError, match="verl's reward function"):
        distill(Distillation(**{**vars(plan), "environment": Part(unscored, None)}), tmp_path)
    with pytest.raises(RecipeError, match="offers no expert"):
        distill(plan, tmp_path)
    with pytest.raises(RecipeError, match=r"cannot play 'chain_of_agents'.*distilled"):
        distill(Distillation(**{**vars(plan), "system": Part(WORKER, CHAIN)}), tmp_path)


def test_stop_strings_that_an_endpoint_cut_off_come_back():
    stop = ("</think>", "</plan>")
    assert with_stop("<think>a", stop) == "<think>a</think>"
    assert with_stop("<think>a</think>", stop) == "<think>a</think>"
    assert with_stop("<think>a</think><plan>b", stop) == "<think>a</think><plan>b</plan>"
    assert with_stop("<b>bold", stop) == "<b>bold"
    assert with_stop("plain", stop) == "plain"


# ---- telling ---------------------------------------------------------------------------------------------------------


def said(text, role="agent", level=0, segment=0, calls=()):
    node = Node(0, -1, -1, 0, role, role, level, 0, segment, -1, [], [], [])
    return TranscriptTurn(
        node, text, tuple(EnvironmentCall(action, StepResult(seen, valid=valid)) for action, seen, valid in calls)
    )


def transcript(*turns):
    return Transcript("who?", StepResult(""), turns)


QUESTIONS = ChainOptions(
    tools={"web_search": "search {content}", "python": "python {content}", "do": "{content}"},
    answer_action="answer {content}",
)


def test_thoughts_tools_verdicts_and_answers():
    told = transcribe(
        QUESTIONS,
        transcript(
            said("1. look it up\n2. say it", "planner"),
            said("I should look. <search>ada</search>", "searcher", 1, 0, [("search ada", "1815", True)]),
            said("that is enough", "verifier", 1, 0),
            said("answer 1815", "writer", 1, 1, [("answer 1815", "", True)]),
        ),
    )
    assert told == [
        "<think>who?</think>", "<plan>1. look it up\n2. say it</plan>",
        "<think>I should look.</think>", "<web_search>ada</web_search>",
        "<think>look it up</think>", "<reflection>that is enough</reflection>",
        "<think>say it</think>", "<suggested_answer>1815</suggested_answer>",
        "<think>say it</think>", "<double_check>score 4</double_check>",
        "<think>say it</think>", "<answer>1815</answer>",
    ]  # fmt: skip


def test_the_longest_template_says_what_an_action_was():
    told = transcribe(
        QUESTIONS, transcript(said("x", calls=[("python 1 {0}", "", True)]), said("y", calls=[("hop", "", True)]))
    )
    assert [part for part in told if "think" not in part] == ["<python>1 {0}</python>", "<do>hop</do>"]
    with pytest.raises(ValueError, match="no_tool"):
        transcribe(ChainOptions(tools={"go": "go {content}"}), transcript(said("x", calls=[("hop", "", True)])))


def test_a_refused_action_is_reflected_on_where_the_grammar_lets_it():
    turns = transcript(said("x", calls=[("hop", "you cannot", False)]), said("x", calls=[("hop", "ok", True)]))
    assert "<reflection>that failed : you cannot</reflection>" in transcribe(QUESTIONS, turns)
    blunt = ChainOptions(tools={"do": "{content}"}, grammar={"tool": ("tool",)})
    assert not any("reflection" in part for part in transcribe(blunt, turns))


def test_telling_survives_whatever_a_teacher_says():
    rng = random.Random(0)
    pieces = ("<a>", "</a>", "<think>", "</plan>", ";", "\n", "word", "{0}", "<", "\x00")
    for _ in range(500):
        turns = [
            said(
                "".join(rng.choices(pieces, k=rng.randrange(8))),
                rng.choice(("planner", "executor", "verifier", "think", "plan")),
                rng.randrange(2),
                rng.randrange(3),
                [("".join(rng.choices(pieces, k=3)), "seen", rng.random() < 0.5)] * rng.randrange(3),
            )
            for _ in range(rng.randrange(5))
        ]
        try:
            assert all(isinstance(part, str) for part in transcribe(QUESTIONS, transcript(*turns)))
        except ValueError as error:
            assert str(error).isidentifier()


def test_filters_are_asked_in_order():
    filters = Filters(activations=2, calls=1)
    record = SimpleNamespace(status="finished", success=None, ret=0.0, error=None)
    assert filters.complexity(transcript(said("x"))) == "few_activations"
    assert filters.complexity(transcript(said("x"), said("y"))) == "few_calls"
    assert filters.correctness(record) == "wrong"
    assert filters.correctness(SimpleNamespace(status="failed", success=None, ret=1.0)) == "environment_failed"
    told = SimpleNamespace(episodes=[record], nodes=[])
    assert filters.format(told) == "other_outcome"
    assert filters.format(told, cut=True) == "too_long"
    with pytest.raises(ValueError):
        Filters(upsample=0)
