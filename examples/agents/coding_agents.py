"""Coding agents as they are, each a function of the task for the gateway's option `agent`.

Each program is called by its name, so it has to be on the PATH. It gets a home of its own for each episode, with the
settings that point it to the policy and keep it from asking anybody else, and works in an empty folder, in which the
files of the task lie (`files`: name to text). Its result is what it says last; where the task has `result: files`, the
Python files of that folder as JSON. `further` has what pi is told behind the instruction, message by message.

A program runs the commands that the policy writes, with your rights: train it in a container.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

CONTEXT = int(os.environ.get("AGENT_CONTEXT_TOKENS", "0")) or 32_768
"""Tokens of a conversation, above which a program summarises it."""
HOURS = 4 * 3600 * 1000
"""Milliseconds that a program waits for an answer."""
MOST_FILES, MOST_CHARACTERS = 64, 20_000
"""Files that are given back, and characters of each; a folder that has more lacks the others."""
Program = Callable[[dict[str, Any]], str]


def _program(play: Program) -> Program:
    """The function that gives back the files where its task asks for them."""

    @wraps(play)
    def played(task: dict[str, Any]) -> str:
        if task.get("result") != "files":
            return play(task)
        left: dict[str, str] = {}
        play({**task, "left": left})
        return json.dumps(left)

    return played


@_program
def pi(task: dict[str, Any]) -> str:
    """`npm install @mariozechner/pi-coding-agent@0.73.1`"""
    model = {"id": _model(), "contextWindow": CONTEXT}
    provider = {"baseUrl": _url(), "api": "openai-completions", "apiKey": "OPENAI_API_KEY", "models": [model]}
    # By default it keeps more of a conversation than a small context has.
    settings = {"compaction": {"reserveTokens": CONTEXT // 4, "keepRecentTokens": CONTEXT // 8}}
    files = {".pi/agent/models.json": {"providers": {"policy": provider}}, ".pi/agent/settings.json": settings}
    with _home(files) as home:
        said = [task["instruction"], *task.get("further", ())]
        command = ["pi", "-p", "--provider", "policy", "--model", _model(), *said]
        return _run(task, home, command, PI_OFFLINE="1", PI_SKIP_VERSION_CHECK="1")


@_program
def opencode(task: dict[str, Any]) -> str:
    """`npm install opencode-ai@1.18.33`"""
    model = {"limit": {"context": CONTEXT, "output": CONTEXT // 4}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": _url(), "apiKey": os.environ["OPENAI_API_KEY"], "timeout": HOURS},
        "models": {_model(): model},
    }
    settings = {"provider": {"policy": provider}, "autoupdate": False, "share": "disabled", "permission": "allow"}
    with _home({".config/opencode/opencode.json": settings}) as home:
        command = ["opencode", "run", "--title", "t", "--format", "json", "--model", f"policy/{_model()}"]
        quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        events = map(json.loads, _run(task, home, [*command, task["instruction"]], **quiet).splitlines())
        return next((event["part"]["text"] for event in reversed([*events]) if event["type"] == "text"), "")


@_program
def codex(task: dict[str, Any]) -> str:
    """`npm install @openai/codex@0.169.0`"""
    lines = [
        f'model = "{_model()}"',
        'model_provider = "policy"',
        'approval_policy = "never"',
        'sandbox_mode = "workspace-write"',
        "check_for_update_on_startup = false",
        f"model_context_window = {CONTEXT}",
        "[analytics]",
        "enabled = false",
        "[model_providers.policy]",
        'name = "policy"',
        f'base_url = "{_url()}"',
        'env_key = "OPENAI_API_KEY"',
        'wire_api = "responses"',
        f"stream_idle_timeout_ms = {HOURS}",
    ]
    with _home({".codex/config.toml": "\n".join(lines)}) as home:
        last = home / "last"
        command = ["codex", "exec", "--skip-git-repo-check", "--output-last-message", str(last)]
        _run(task, home, [*command, task["instruction"]])
        return last.read_text()


@_program
def claude_code(task: dict[str, Any]) -> str:
    """`npm install @anthropic-ai/claude-code@2.1.197`"""
    tools = "Bash,Read,Write,Edit,Agent"
    command = ["claude", "-p", task["instruction"], "--model", os.environ["ANTHROPIC_MODEL"]]
    command += ["--tools", tools, "--allowedTools", tools, "--permission-mode", "acceptEdits"]
    quiet = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "DISABLE_AUTOUPDATER": "1",
    }
    limits = {"API_TIMEOUT_MS": str(HOURS), "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(CONTEXT)}
    with _home({}) as home:
        return _run(task, home, command, **quiet, **limits)


@_program
def qwen_code(task: dict[str, Any]) -> str:
    """`npm install @qwen-code/qwen-code@0.15.10`"""
    settings = {
        "general": {"disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"generationConfig": {"timeout": HOURS, "contextWindowSize": CONTEXT}},
    }
    with _home({".qwen/settings.json": settings}) as home:
        return _run(task, home, ["qwen", "--yolo", "-p", task["instruction"]])


@_program
def mini_swe_agent(task: dict[str, Any]) -> str:
    """`pip install mini-swe-agent==2.4.6`"""
    with _home({}) as home:
        log = home / "log.json"
        command = ["mini", "-y", "--exit-immediately", "-l", "0", "-m", f"openai/{_model()}"]
        quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
        _run(
            task,
            home,
            [*command, "-t", task["instruction"], "-o", str(log)],
            MSWEA_GLOBAL_CONFIG_DIR=str(home),
            LITELLM_LOCAL_MODEL_COST_MAP="True",
            **quiet,
        )
        return str(json.loads(log.read_text())["info"].get("submission", ""))


def _url() -> str:
    return os.environ["OPENAI_BASE_URL"]


def _model() -> str:
    return os.environ["OPENAI_MODEL"]


@contextmanager
def _home(files: dict[str, Any]) -> Iterator[Path]:
    """A home of its own with these files, each a text or what becomes JSON."""
    # In this form the endpoint knows it for a name that differs from run to run.
    home = Path(tempfile.gettempdir(), f"home-{secrets.token_hex(4)}")
    try:
        _write(home, {name: text if isinstance(text, str) else json.dumps(text) for name, text in files.items()})
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def _run(task: dict[str, Any], home: Path, command: list[str], **settings: str) -> str:
    """Run a program on a task, and return what it writes to its standard output.

    Raises:
        RuntimeError: when it fails, with the end of its log; the gateway then says it of the episode.
    """
    work = home / "work"
    work.mkdir(parents=True)
    _write(work, task.get("files", {}))
    environ = {**os.environ, "HOME": str(home), **settings}
    done = subprocess.run(command, cwd=work, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    if "left" in task:
        task["left"].update(_read(work))
    return done.stdout.strip()


def _read(folder: Path) -> dict[str, str]:
    """The Python files in a folder, as far as a program left them there: no links, and none that is too large."""
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in files:
            path = Path(place, name)
            if not name.endswith(".py") or path.is_symlink() or path.stat().st_size > 4 * MOST_CHARACTERS:
                continue
            if len(found) == MOST_FILES:
                return found
            found[path.relative_to(folder).as_posix()] = path.read_text("utf-8", errors="replace")
    return found
