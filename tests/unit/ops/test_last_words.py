"""What the terminal says of a run that has died, from what its processes have printed."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError

from verl_hier.errors import RolloutError, is_users, raised
from verl_hier.ops.last_words import LONGEST, LastWords, line_of_code

LOGS = Path(__file__).parents[2] / "fixtures" / "last_words"
"""What Ray 2.56 printed when a process of a process of the driver ended in several ways."""


def cause_of(log: str) -> str:
    words = LastWords()
    words.take(f"{line}\n".encode() for line in log.splitlines())
    cause = words.cause()
    return "" if cause is None else cause.said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain", "KeyError: 'score' (/home/me/rooms/rooms.py:2)"),
        ("chained", "RuntimeError: scoring went wrong: second line (/home/me/rooms/app.py:14)"),
        ("ours", "hier.estimator.name: the column x is missing (/home/me/rooms/app.py:17)"),
        ("killed", "the process Inner of the run was killed, as the system does where memory runs out"),
        ("init", "ValueError: no weights (/home/me/rooms/app.py:21)"),
        ("exits", "the process Inner of the run ended with exit code 3"),
    ],
)
def test_what_ray_prints(name: str, said: str) -> None:
    assert cause_of((LOGS / f"{name}.txt").read_text()).startswith(said)


LATE = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/verl/trainer/main_ppo.py", line 60, in run_ppo
    ray.init(**OmegaConf.to_container(ray_init_kwargs))
  File "/env/lib/python3.11/site-packages/ray/_private/node.py", line 376, in __init__
    raise Exception(
Exception: The current node timed out during startup.
A process of the run is started again, because its Ray was late (1 of 2).
"""


@pytest.mark.parametrize("name", ["plain", "chained", "ours", "killed", "init", "exits"])
def test_a_start_that_was_made_again_is_no_cause(name: str) -> None:
    log = (LOGS / f"{name}.txt").read_text()
    assert cause_of(LATE).startswith("Exception: The current node timed out")
    assert cause_of(LATE + log) == cause_of(log)


TYPES = [ValueError, KeyError, RuntimeError, AssertionError, FileNotFoundError, ZeroDivisionError, RolloutError]
WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=60).filter(str.strip)
NOISE = [
    "INFO 09-01 step:1 - actor/loss: 0.1",
    "(AgentLoopWorker pid=7) Traceback (most recent call last):",
    '(AgentLoopWorker pid=7)   File "/home/me/handled.py", line 3, in go',
    "(AgentLoopWorker pid=7) ValueError: handled",
    "(raylet) warning: the disk is nearly full [repeated 3x across cluster]",
    "Training Progress:  10%|#         | 1/10",
]


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(TYPES),
    text=WORDS,
    file=st.sampled_from(["/home/me/rewards.py", "/home/me/мой код/награда.py", "/data/a=b@c/agent 1.py"]),
    line=st.integers(1, 400),
    hops=st.integers(0, 3),
    noise=st.lists(st.sampled_from(NOISE), max_size=5),
    after=st.sampled_from(["", "Exception ignored in: <function Pool.__del__>\nTraceback (most recent call last):\n"]),
)
def test_type_message_and_line_are_told(
    kind: type[Exception], text: str, file: str, line: int, hops: int, noise: list[str], after: str
) -> None:
    """Whatever is raised in a user's file, and through however many processes Ray carries it."""
    source = compile("\n" * (line - 1) + "raise error", file, "exec")
    try:
        exec(source, {"error": kind(text)})
    except Exception as error:
        caught: Exception = error
    for hop in range(hops):
        printed = "".join(traceback.format_exception(caught))
        carried = RayTaskError(f"Process{hop}.work", printed, caught).as_instanceof_cause()
        try:
            raise carried
        except Exception as error:
            caught = error
    said = "".join(traceback.format_exception(caught)).rstrip("\n")
    ignored = f'{after}  File "/opt/venv/lib/python3.11/x.py", line 1, in f\nTypeError: late' if after else ""
    told = cause_of("\n".join([*noise, said, *noise, ignored]))
    expected = str(kind(text)).splitlines()[0].strip().rstrip(".")
    if kind is not RolloutError:
        assert told.startswith(f"{kind.__name__}: {expected}".strip()[:LONGEST]), said
    assert expected.split()[0] in told and told.count(kind.__name__) <= 1 + text.count(kind.__name__)
    assert told.endswith(f"({file}:{line})")


def test_without_a_traceback_the_last_sentence_of_ours_is_told() -> None:
    assert cause_of("(TaskRunner pid=1) verl_hier.errors.RolloutError: the server is gone\nbye") == "the server is gone"
    assert cause_of("nothing\nat all") == ""


def test_an_error_of_a_users_code_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my rewards.py"
    file.write_text("import json\ndef reward(text):\n    return json.loads(text)\n")
    names: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(ValueError) as found:
        names["reward"]("no JSON")  # type: ignore[operator]
    assert raised(found.value).endswith("(my rewards.py:3)") and raised(found.value).startswith("JSONDecodeError: ")
    with pytest.raises(SyntaxError) as broken:
        compile("x = = 1", str(file), "exec")
    assert raised(broken.value).endswith("(my rewards.py:1)")
    assert is_users(str(file)) and not is_users(json_file()) and not is_users(pytest.__file__)


def json_file() -> str:
    import json

    return json.__file__


def test_the_recipe_line_that_names_the_code() -> None:
    config = OmegaConf.create(
        {
            "hier": {
                "plugins": {"relay": True},
                "rewards": {"math": {"function": "myrewards.count"}},
                "environment": {"name": "gateway", "program": "agents/open_house.py"},
            },
            "reward": {"custom_reward_function": {"path": "/data/награда.py"}},
            "actor_rollout_ref": {"rollout": {"name": "transformers"}},
        }
    )
    for file, line in {
        "/home/me/myrewards.py": "hier.rewards.math.function",
        "/home/me/relay/worker.py": "hier.plugins.relay",
        "/home/me/agents/open_house.py": "hier.environment.program",
        "/data/награда.py": "reward.custom_reward_function.path",
    }.items():
        assert line_of_code(config, file) == line
    assert line_of_code(config, "/usr/other.py") is None
