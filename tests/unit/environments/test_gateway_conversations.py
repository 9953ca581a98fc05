"""Conversations that come back in other words, and of which answer a conversation comes."""

import json
import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier_plugins.environments.gateway.answers import CUT, answer_to
from verl_hier_plugins.environments.gateway.chance import DrawnNames
from verl_hier_plugins.environments.gateway.conversations import Conversations, said_of
from verl_hier_plugins.environments.gateway.dialects import CHAT

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"what": {}}}}}
    for name in ("look", "ask")
]


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Program:
    """The requests of an agent program and the answers that it gets."""

    def __init__(self, nonce="n0nce"):
        self.conversations = Conversations("hermes", ("system-reminder",))
        self.nonce, self.answers = nonce, 0

    def asks(self, messages, answer, tools=TOOLS, agent="", stop=None):
        """What the worker is told of a request, and the message of its answer."""
        request = CHAT.read({"messages": messages, "tools": tools, "stop": stop}, agent, 10**6)
        taken = self.conversations.take(request)
        said = said_of(*taken, request, DrawnNames())
        reply = answer_to(request, answer, f"{self.nonce}_{self.answers}")
        self.answers += 1
        self.conversations.answered(taken[0], reply.message)
        return said, CHAT.whole(request, [reply])["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


# ---- what changes nothing ------------------------------------------------------------------------------------------


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


def rendered(messages, rng):
    """A conversation in other words: each way of it was seen of a real program."""
    out = []
    for number, message in enumerate(messages):
        text, calls, more = message["content"] or "", message.get("tool_calls"), {}
        text = rng.choice(["", " ", "\n\n"]) + text.strip() + rng.choice(["", "\n"])
        if message["role"] == "assistant" and calls:
            calls = [{**each, "function": dict(each["function"])} for each in calls]
            for each in calls:
                arguments = json.loads(each["function"]["arguments"])
                each["function"]["arguments"] = rng.choice(
                    [json.dumps(arguments, indent=1), json.dumps({"added": False, **arguments}), "{}"]
                )
                each["function"]["name"] = rng.choice([each["function"]["name"], "invalid"])
            if rng.random() < 0.3:
                text, calls = f"{text}\nCalling tools:\n{calls!r}", None
            more = {"tool_calls": calls} if calls else {}
        elif message["role"] == "assistant":
            _, _, text = text.rpartition("</think>") if rng.random() < 0.5 else ("", "", text)
        elif message["role"] == "user":
            if rng.random() < 0.3:
                text += "\n<system-reminder>be brief</system-reminder>"
            if out and out[-1]["role"] == "user" and rng.random() < 0.5 and number < len(messages) - 1:
                out[-1] = user(f"{text_of(out[-1]).strip()}\n\n{text.strip()}")
                continue
        if "tool_call_id" in message:
            more["tool_call_id"] = message["tool_call_id"]
        content = rng.choice([text, [{"type": "text", "text": text}]])
        out.append({"role": message["role"], "content": content, **more})
        if rng.random() < 0.1 and message["role"] == "user":
            out.append(user("<system-reminder>the list is empty</system-reminder>"))
    return out


def turns(rng):
    """An answer of the policy, and what the program says to it."""
    word = f"w{rng.randrange(10**9)}"
    kind = rng.choice(["call", "calls", "text", "thought"])
    if kind == "call":
        return f"I look. \n{call('look', what=word)}"
    if kind == "calls":
        return call("look", what=word) + call("ask", what=word)
    return f"  said {word}\n" if kind == "text" else f"<think>why {word}</think>\nsaid {word}"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_other_words_for_a_conversation_continue_it_and_a_change_does_not(seed, changes):
    rng = random.Random(seed)
    program, messages = Program(), [system("You help."), user("the task"), user("more of it")]
    for turn in range(rng.randint(2, 5)):
        said, answer = program.asks(rendered(messages, rng), turns(rng))
        assert (said["context"], said["begins"]) == (0, "" if turn else "first")
        messages.append(answer)
        new = [
            {"role": "tool", "tool_call_id": each["id"], "content": f"seen {turn}"}
            for each in answer.get("tool_calls") or ()
        ] or [user(f"go on {turn}")]
        messages += new
    new = [message["content"] for message in new]
    if not changes:
        said, _ = program.asks(rendered(messages, rng), "end")
        # The context keeps its tokens, and nothing but what is new is added to it.
        assert (said["context"], said["begins"], said["foreign"]) == (0, "", 0)
        texts = [
            text.replace("<system-reminder>be brief</system-reminder>", "").strip() for _, text in said["messages"]
        ]
        assert [text for text in texts if text and not text.startswith("<system-reminder>")] == new
        return
    place = rng.choice([n for n, message in enumerate(messages[: -len(new)]) if n and not message.get("tool_calls")])
    changed = [dict(message) for message in messages]
    changed[place]["content"] = rng.choice(["another", changed[place]["content"].strip() + " and", ""])
    said, _ = program.asks(changed, "end")
    assert said["context"] == 1 and said["begins"] in ("edited", "first")


def test_turns_that_no_policy_wrote_are_observed_and_no_failure():
    program = Program()
    opening = [system("s"), user("q"), {"role": "assistant", "content": "Got it."}, user("on")]
    first, answer = program.asks(opening, "fine")
    made = {"id": "call_1", "type": "function", "function": {"name": "back", "arguments": "{}"}}
    more = [{"role": "assistant", "content": "", "tool_calls": [made]}, user("and now")]
    second, _ = program.asks([*opening, answer, *more], "done")
    assert (first["foreign"], second["foreign"], second["context"], second["begins"]) == (1, 1, 0, "")


def test_a_stop_string_that_is_put_back_and_a_message_that_is_merged_change_nothing():
    program = Program()
    _, answer = program.asks([user("q")], "x = 1</code>", None, stop=["</code>"])
    assert answer["content"] == "x = 1"
    merged = {"role": "assistant", "content": "x = 1</code>\nCalling tools:\n[{'id': 'call_1'}]"}
    for messages in ([merged, user("1")], [merged, user("1"), {"role": "assistant", "content": "two"}, user("2")]):
        said, _ = program.asks([user("q"), *messages], "two", None, stop=["</code>"])
        assert (said["context"], said["begins"]) == (0, "")


def test_a_turn_that_its_limit_cut_is_never_a_call():
    request = CHAT.read({"messages": [user("q")], "tools": TOOLS}, "", 1000)
    whole, half = call("look", what="hall"), '<tool_call>{"name": "look", "argu'
    for text in (whole, half, whole + half):
        (choice,) = CHAT.whole(request, [answer_to(request, f"I look. {text}{CUT}", 0)])["choices"]
        assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
        assert choice["message"]["content"] == "I look."
    assert answer_to(request, whole, 0).finish == "calls"


# ---- whose child ---------------------------------------------------------------------------------------------------


def test_a_call_is_the_parent_of_the_conversation_that_quotes_it_and_twins_take_calls_in_order():
    program = Program()
    twins = call("ask", what="find the lamp please") + call("look", what="find the lamp please")
    opening = [system("You lead."), user("the task")]
    _, answer = program.asks(opening, twins)
    said = [
        program.asks([system("You lead."), user(f"Task:\nfind the lamp please\n{n}")], "it is here")[0] for n in "ab"
    ]
    assert [each["parent"] for each in said] == [["spawned", 0, 0, "ask"], ["spawned", 0, 0, "look"]]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "here"} for each in answer["tool_calls"]]
    again, _ = program.asks([*opening, answer, *results], "done")
    assert (again["context"], again["begins"], again["parent"]) == (0, "", None)
    late, _ = program.asks([system("You lead."), user("find the lamp please")], "it is here")
    assert late["parent"] is None  # the call has its result


def test_a_hand_off_comes_of_the_conversation_that_it_goes_on_with():
    program = Program()
    _, answer = program.asks([system("A"), user("q")], call("ask", what="b"))
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "B"}
    said, _ = program.asks([system("B"), user("q"), answer, result], "done", tools=TOOLS[:1])
    assert said["begins"] == "handed" and said["parent"] == ["handed", 0, 0, ""]


def test_a_summary_is_the_parent_of_the_conversation_that_it_begins():
    program, opening = Program(), [system("s"), user("the long task")]
    _, answer = program.asks(opening, "I begin.")
    summary = "We looked into the hall and found a lamp."
    program.asks([*opening, answer, user("Sum up.")], summary)
    said, _ = program.asks([system("s"), user(f"Until now:\n{summary}"), user("Go on.")], "end")
    assert said["begins"] == "compacted" and said["parent"] == ["compacted", 0, 1, ""]


# ---- a real program ------------------------------------------------------------------------------------------------

SMOLAGENTS = [
    "I ask. \n" + call("searcher", task="Find the weather in Rome", additional_args={}),
    "I look.\n " + call("weather", city="Rome"),
    call("final_answer", answer="it is sunny in Rome"),
    call("final_answer", answer="sunny in Rome"),
]


def test_recorded_requests_of_a_manager_and_its_agent_are_two_conversations():
    recorded = (FIXTURES / "smolagents_requests.json").read_text()
    nonce = recorded.partition("call_")[2].partition("_")[0]
    program = Program(nonce)
    said = [
        program.asks(each["messages"], answer, each["tools"], stop=each["stop"])[0]
        for each, answer in zip(json.loads(recorded)["requests"], SMOLAGENTS, strict=True)
    ]
    assert [(each["context"], each["begins"]) for each in said] == [(0, "first"), (1, "first"), (1, ""), (0, "")]
    assert [each["parent"] for each in said][:2] == [None, ["spawned", 0, 0, "searcher"]]
    assert [each["realigned"] for each in said] == [False, False, True, True]
    assert said[2]["messages"] == [["user", "Observation:\nsunny in Rome"]]
