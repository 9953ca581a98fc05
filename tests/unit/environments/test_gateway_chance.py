"""What differs between two runs of a program: it is found wherever it stands, and nothing else is changed."""

import random
import secrets
import time
import uuid

import pytest

from verl_hier_plugins.environments.gateway.chance import DrawnNames, settled
from verl_hier_plugins.environments.gateway.endpoint import threads_of

DRAWS = {
    "a UUID": lambda: str(uuid.uuid4()),
    "a session of OpenCode": lambda: f"ses_{secrets.token_hex(10)}",
    "a home": lambda: f"/tmp/home-{secrets.token_hex(4)}/work",
    "a hash": lambda: secrets.token_hex(32),
    "a file with an output": lambda: f"/tmp/pi-bash-{secrets.token_hex(8)}.log",
    "a folder of tempfile": lambda: f"/tmp/tmp{secrets.token_hex(4)}/x",
}
GIVEN = {
    "an agent of Claude Code": ("agentId: {}", lambda: f"a{secrets.token_hex(8)}"),
    "an agent of Codex": ('{{"nickname":"{}"}}', lambda: secrets.choice(("Euler", "Noether", "Heisenberg", "Gauss"))),
    "a file": ("Full output saved to: {}", lambda: f"/tmp/home-{secrets.token_hex(4)}/tool_{secrets.token_hex(6)}"),
}
MEASURED = ("Wall time: {}.25 seconds", "duration_ms: {}", "Process Group PGID: {}")


@pytest.mark.parametrize("seed", range(20))
def test_two_runs_say_the_same_and_one_is_told_in_the_names_of_the_other(seed):
    dice = random.Random(seed)
    made = [(dice.choice([*DRAWS.values()]), f"first {{}} of {number}") for number in range(4)]
    made += [(draw, form) for form, draw in GIVEN.values()]
    dice.shuffle(made)
    runs = [[draw() for draw, _ in made] for _ in range(2)]
    first, now = ("\n".join(form.format(name) for (_, form), name in zip(made, run)) for run in runs)
    measured = [[form.format(dice.randrange(10**6)) for form in MEASURED] for _ in range(2)]
    assert settled("\n".join([first, *measured[0]])) == settled("\n".join([now, *measured[1]]))
    names = DrawnNames()
    names.learn(first, now)
    assert names.of_the_first(now) == first and names.of_this(first) == now
    # Further on they are quoted without what told them for names.
    quotes = [" and ".join(f"cat {name}" for name in run) for run in runs]
    assert names.of_the_first(quotes[1]) == quotes[0] and names.of_this(quotes[0]) == quotes[1]


@pytest.mark.parametrize("seed", range(50))
def test_what_is_no_name_is_not_changed(seed):
    dice = random.Random(seed)
    words = ("home", "tmp", "agent", "12:30", "0.25 seconds", "deadbeef", "session", "saved", "3f2504e0", "\x00")
    text = " ".join(dice.choices(words, k=40))
    assert settled(text) == text
    names = DrawnNames()
    names.learn(str(uuid.uuid4()), str(uuid.uuid4()))
    assert names.of_the_first(text) == names.of_this(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("agentId: aaaaaaa{}\n", '"nickname":"name{}"', "saved to: /tmp/{} ", "00000000-0000-4000-8000-{:012}\n"),
        *("saved to: ", "agentId: ", "tmp", "0123456789abcdef-", "Wall time: 1"),
    ],
)
def test_long_texts_take_linear_time(text):
    spent = []
    for size in (4_000, 16_000):
        other = "".join(text.format(number) for number in range(size))
        begun = time.process_time()
        settled(other)
        names = DrawnNames()
        names.learn(other, other.replace("0", "1"))
        names.of_the_first(other)
        spent.append(time.process_time() - begun)
    assert spent[1] < 16 * spent[0] + 0.5


CODEX = {"session-id": "r", "thread-id": "c", "x-codex-parent-thread-id": "r"}
CLAUDE = {"x-claude-code-session-id": "s"}


@pytest.mark.parametrize(
    ("headers", "threads"),
    [
        ({}, ("", "")),
        (CODEX, ("c", "r")),
        ({"session-id": "r", "thread-id": "r"}, ("r", "")),
        ({"x-session-id": "c", "x-parent-session-id": "p"}, ("c", "p")),
        ({"x-session-id": "p"}, ("p", "")),
        (CLAUDE, ("s", "")),
        (CLAUDE | {"x-claude-code-agent-id": "a"}, ("a", "s")),
        (CLAUDE | {"x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"}, ("b", "a")),
    ],
)
def test_headers_of_known_programs_say_whose_agent_asks(headers, threads):
    assert threads_of(headers) == threads
