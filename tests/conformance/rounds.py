"""Recorded engine calls, played to a real sampler and the real episode machine.

The recorded code advances all prompts of a batch in one loop: a call to the engine for every active chain, then the
branches of every prompt, by one stream of draws. Here every prompt is a rollout of its own. All of them run at once,
wait after a call until it is their turn to branch, and wait again until the next call answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import HierError
from verl_hier.graph.nodes import Node
from verl_hier.rollout import (
    Episode,
    EpisodeView,
    Generation,
    Limits,
    Request,
    Rollout,
    Sampler,
    Sampling,
    Scored,
    Worker,
)
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.testing.rollout import InlinePool

Case = Mapping[str, Any]
Outputs = dict[str, Any]
TOOL, ANSWER = "tool", "answer"
# The end token of the tokenizer in the recordings, which they append to a chain that has no tool calls left.
END = 2
_UNLIMITED = 10**9


def replay(case: Case, make_sampler: Callable[[], Sampler]) -> Outputs:
    """Play a recording and return what it has as output.

    Args:
        case: the `input` of a case of `arpo_rollout` or `aepo_rollout`.
        make_sampler: called for each prompt of the batch.

    Raises:
        HierError: when the sampler asks for something else than what was recorded.
    """
    return asyncio.run(_Batch(case).play(make_sampler))


class _World(Environment):
    """Answers a tool call with the recorded tokens and ends at an answer."""

    def __init__(self, result: Iterable[int]) -> None:
        self._result = " ".join(map(str, result))

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        return StepResult("0")

    def step(self, action: str) -> StepResult:
        return StepResult(self._result) if action == TOOL else StepResult("", done=True)


class _Caller(Worker):
    """Calls the tool until the engine generates something else, no call is left or the response is long enough."""

    def __init__(self, calls: int, length: int) -> None:
        self._calls = calls
        self._length = length

    async def run(self, episode: EpisodeView) -> None:
        context = episode.context("agent")
        step = await episode.reset()
        spoken, calls = 0, 0
        while not step.done:
            turn = await episode.generate(context.observe(step.text))
            called = turn.node.stop_reason == TOOL and calls < self._calls
            step = await episode.act(TOOL if called else ANSWER)
            calls += called
            spoken += len(turn.tokens) + len(step.text.split())
            if called and spoken >= self._length:
                step = await episode.act(ANSWER)


class _Numbers:
    """A renderer whose messages are token ids.

    Attributes:
        whole: the outputs that the recorded engine has not cut.
    """

    stop_tokens = ()

    def __init__(self) -> None:
        self.whole: set[tuple[int, ...]] = set()

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        return tokens + [int(token) for message in pending for token in message["content"].split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        return any(tuple(tokens[-len(output) :]) == output for output in self.whole)


class _Draws(random.Random):
    """The recorded draws, one after the other, whichever prompt takes them."""

    def __init__(self, values: Iterable[float]) -> None:
        super().__init__(0)
        self._values = list(values)
        self.used = 0

    def random(self) -> float:
        if self.used == len(self._values):
            raise HierError(f"the recording has {self.used} draws, and the sampler takes one more.")
        self.used += 1
        return self._values[self.used - 1]


class _Prompt(Rollout):
    """The rollout of one prompt; it is its own policy, which waits for the recorded calls."""

    def __init__(self, case: Case, number: int, draws: random.Random, changed: asyncio.Event) -> None:
        result = case["tool_result_tokens"]
        setup = RolloutSetup(
            policies={DEFAULT_POLICY: self},
            renderer=_Numbers(),
            environments=InlinePool(lambda: _World(result)),
            limits=Limits(_UNLIMITED, _UNLIMITED, _UNLIMITED),
            entropy=EntropyOptions("top_k", k=_UNLIMITED),
            vocabulary=case["vocab"],
        )
        request = Request(task={}, identity={"uid": str(number), "index": number}, n=case["n"])
        super().__init__(request, setup, lambda: _Caller(case["tool_call_limit"], case["max_response_len"]))
        self.task_of: asyncio.Task[Any]
        self._draws = draws
        self._changed = changed
        self._asked: list[tuple[list[int], asyncio.Future[Generation]]] = []
        self._gate: asyncio.Future[None] | None = None
        self._bare: int | None = None

    # ---- what the sampler and its episodes meet ---------------------------------------------------------------------

    def rng(self, *names: object) -> random.Random:
        """The recorded draws."""
        return self._draws

    async def advance(self, episodes: Iterable[Episode], tokens: int | None = None) -> list[Episode]:
        """As always, and then wait for the turn to branch."""
        running = await super().advance(episodes, tokens)
        self._gate = asyncio.get_running_loop().create_future()
        self._changed.set()
        await self._gate
        return running

    async def generate(self, prompt: list[int], sampling: Sampling, *_: Any) -> Generation:
        """One output of a recorded call."""
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._asked.append((prompt, answer))
        self._changed.set()
        return await answer

    async def score(self, prompt: list[int], tokens: list[int], *_: Any, **__: Any) -> Scored:
        """Not recorded."""
        raise HierError("the recording has no scores of given tokens.")

    # ---- what the batch does with it --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether its sampler has returned."""
        return self.task_of.done()

    @property
    def asking(self) -> bool:
        """Whether all its chains wait for the engine."""
        return bool(self._asked) and len(self._asked) == sum(not episode.over for episode in self.episodes)

    @property
    def waiting(self) -> bool:
        """Whether it waits for its turn to branch."""
        return self._gate is not None

    @property
    def probing(self) -> bool:
        """Whether it is still to find out how many chains start."""
        return self.asking and not self.chains

    @property
    def chains(self) -> list[Episode]:
        """Its chains in the order in which they were made."""
        return [episode for episode in self.episodes if episode.record.trained]

    def answer(self, output: Mapping[str, Any]) -> None:
        """Give the engine's output to the first chain that waits.

        Raises:
            HierError: when the recorded output answers a prompt of another length.
        """
        prompt, answer = self._asked.pop(0)
        length = output.get("prompt_len", len(prompt))
        self._bare = length - len(prompt) if self._bare is None else self._bare
        if length != self._bare + len(prompt):
            raise HierError(f"the recording answers a prompt of {length} tokens, and that one has {len(prompt)}.")
        top = [list(enumerate(position)) for position in output["top_logprobs"]]
        if output["finish"] != "length":
            assert isinstance(self.renderer, _Numbers)
            self.renderer.whole.add(tuple(output["tokens"]))
        answer.set_result(Generation(list(output["tokens"]), [], output["finish"], top_logprobs=top))

    def branch(self) -> None:
        """Let it branch."""
        if self._gate is not None:
            gate, self._gate = self._gate, None
            gate.set_result(None)


class _Batch:
    """All prompts of a recording."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._draws = _Draws(case["uniform_draws"])
        self._changed = asyncio.Event()
        self._prompts = [_Prompt(case, number, self._draws, self._changed) for number in range(case["batch"])]
        self._chains: list[tuple[_Prompt, Episode]] = []

    async def play(self, make_sampler: Callable[[], Sampler]) -> Outputs:
        """See `replay`."""
        for prompt in self._prompts:
            prompt.task_of = asyncio.create_task(roll_out(prompt, make_sampler()))
            prompt.task_of.add_done_callback(lambda _: self._changed.set())
        calls = 0
        try:
            await self._until(lambda prompt: prompt.asking, self._prompts)
            self._enlist(self._prompts)
            for call in self._case["engine_calls"]:
                if all(prompt.finished for prompt in self._prompts):
                    break
                await self._call(call)
                calls += 1
            if not all(prompt.finished for prompt in self._prompts):
                raise HierError(f"the recording ends after {calls} calls, and the sampler asks for another one.")
        finally:
            for prompt in self._prompts:
                prompt.task_of.cancel()
            ended = await asyncio.gather(*(prompt.task_of for prompt in self._prompts), return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return self._outputs(calls)

    async def _call(self, call: Mapping[str, Any]) -> None:
        """Answer one recorded call, then let the prompts branch in the order of their first active chains."""
        outputs = call["outputs"]
        if call.get("dynamic_phase"):
            asked = [prompt for prompt in self._prompts if prompt.probing][: len(outputs)]
        else:
            asked = [prompt for prompt, chain in self._chains if not chain.over]
        if len(asked) != len(outputs):
            raise HierError(f"the recorded call has {len(outputs)} outputs, and the sampler asks for {len(asked)}.")
        for prompt, output in zip(asked, outputs, strict=True):
            prompt.answer(output)
        served = list(dict.fromkeys(asked))
        await self._until(lambda prompt: prompt.waiting, served)
        first = {prompt: place for place, (prompt, chain) in reversed(list(enumerate(self._chains))) if not chain.over}
        # Prompts without an active chain start a fresh one after the others have branched, in the order of the batch.
        last = len(self._chains)
        served.sort(key=lambda prompt: (first.get(prompt, last), self._prompts.index(prompt)))
        for prompt in served:
            prompt.branch()
            await self._until(lambda prompt: prompt.asking, [prompt])
        self._enlist(served)

    def _enlist(self, prompts: list[_Prompt]) -> None:
        known = {id(chain) for _, chain in self._chains}
        if any(prompt.probing for prompt in self._prompts):
            return
        for prompt in self._prompts if not known else prompts:
            self._chains += [(prompt, chain) for chain in prompt.chains if id(chain) not in known]

    async def _until(self, ready: Callable[[_Prompt], bool], prompts: list[_Prompt]) -> None:
        """Wait until each of the prompts is ready or has finished."""
        while not all(prompt.finished or ready(prompt) for prompt in prompts):
            self._changed.clear()
            await self._changed.wait()
        for prompt in prompts:
            if prompt.finished and not prompt.task_of.cancelled() and prompt.task_of.exception() is not None:
                raise prompt.task_of.exception()  # type: ignore[misc]

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _outputs(self, calls: int) -> Outputs:
        spoken = [(prompt, chain) for prompt in self._prompts for chain in self._kept(prompt)]
        lines = [self._line(prompt, chain) for prompt, chain in spoken]
        return {
            "initial_rollouts_used": [
                sum(chain.record.decision.get("reason") == "initial" for chain in prompt.chains)
                for prompt in self._prompts
            ],
            "responses": [tokens for tokens, _ in lines],
            "loss_mask": [mask for _, mask in lines],
            "initial_entropy": {
                str(number): self._own(prompt, chain)[0].decision["step_entropy"]
                for number, (prompt, chain) in enumerate(self._chains)
            },
            "n_uniform_draws": self._draws.used,
            "n_engine_calls": calls,
        }

    def _kept(self, prompt: _Prompt) -> list[Episode]:
        """The first n chains; the last one once more where there are fewer, as the recorded code does."""
        chains, n = prompt.chains, int(self._case["n"])
        return (chains + chains[-1:] * n)[:n]

    @staticmethod
    def _own(prompt: _Prompt, chain: Episode) -> list[Node]:
        return [node for node in prompt.graph.nodes if node.episode == chain.id]

    def _line(self, prompt: _Prompt, chain: Episode) -> tuple[list[int], list[int]]:
        """Response and loss mask of a chain."""
        nodes = [prompt.graph.nodes[place] for place in chain.path]
        tokens: list[int] = []
        mask: list[int] = []
        for node in nodes:
            read = node.observation if node is not nodes[0] else []
            tokens += read + node.action
            mask += [0] * len(read) + [1] * len(node.action)
        calls = sum(node.stop_reason == TOOL for node in nodes)
        if calls > self._case["tool_call_limit"]:
            tokens, mask = [*tokens, END], [*mask, 1]
        elif nodes[-1].stop_reason == TOOL:
            result = list(self._case["tool_result_tokens"])
            tokens, mask = tokens + result, mask + [0] * len(result)
        length = int(self._case["max_response_len"])
        return tokens[:length], mask[:length]
