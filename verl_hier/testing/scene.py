"""What the kits for workers and samplers share: a small world, a policy that answers by rule, and a watch on both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from verl_hier.environments.base import Environment, StepResult
from verl_hier.rollout import Generation, Sampling, Scored
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, WordTokenizer

T = TypeVar("T")
Twist = Callable[[int, StepResult], StepResult]
"""Changes an answer of an environment, given the number of actions so far (0 for the reset); it may raise."""
Answer = Callable[[str, Sampling], str]
"""What a policy says to the text of a prompt; `sampling.seed` is the only randomness that it may use."""
MOST_CALLS = 500
"""Actions of one episode of a kit; episodes that make progress need far fewer."""


def wander(prompt: str, sampling: Sampling) -> str:
    """`right` or `left`, by the seed of the request."""
    return "right" if random.Random(sampling.seed).random() < 0.7 else "left"


def says(text: str) -> Answer:
    """The same text to every prompt."""
    return lambda prompt, sampling: text


class Watch:
    """What a part did wrong in its plays, as the ends of sentences that begin with its name."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def note(self, fault: str) -> None:
        """Keep a fault, once."""
        if fault not in self.faults:
            self.faults.append(fault)


def as_it_is(number: int, step: StepResult) -> StepResult:
    """The twist that changes nothing."""
    return step


class Watched(Environment):
    """An environment that notes what a worker must not do, and whose answers may be twisted.

    Args:
        inner: the environment.
        watch: takes the notes.
        twist: changes each answer.
    """

    def __init__(self, inner: Environment, watch: Watch, twist: Twist) -> None:
        self._inner, self._watch, self._twist = inner, watch, twist

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`."""
        self._calls, self._over = 0, False
        return self._seen(self._inner.reset(task, seed))

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        if not isinstance(action, str):
            self._watch.note(f"gives the environment an action that is no text but a {type(action).__name__}")
        if self._over:
            self._watch.note("acts although the environment has ended the episode: look at `done` and `truncated`")
        self._calls += 1
        if self._calls > MOST_CALLS:
            self._watch.note(f"acts more than {MOST_CALLS} times in one episode without coming to an end")
            raise RuntimeError("too many actions")
        return self._seen(self._inner.step(action))

    def close(self) -> None:
        """See `Environment.close`."""
        self._inner.close()

    def _seen(self, answer: StepResult) -> StepResult:
        answer = self._twist(self._calls, answer)
        self._over = answer.done or answer.truncated
        return answer


class Speaker(ScriptedPolicy):
    """Answers by a rule, with log-probs that differ, and stops where a server would: at a stop string or the limit.

    Attributes:
        slow: whether it answers after a while: those who ask first wait longest.
        asked: what it was asked for besides tokens: `scores` and `top_logprobs`.
        requests: number of turns that it was asked for.
        tokens: number of tokens that it has generated.
    """

    slow = False

    def __init__(self, tokenizer: WordTokenizer, answer: Answer) -> None:
        super().__init__(tokenizer, answer)
        self.asked: set[str] = set()
        self.requests = 0
        self.tokens = 0

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        self.requests += 1
        if self.slow:
            # The order of the first answers is always reversed; the distance is more than the event loop needs to
            # wake up who waits for one of them.
            for _ in range(max(0, 80 - 10 * self.requests) + random.SystemRandom().randrange(6)):
                await asyncio.sleep(0)
        self.prompts.append(list(prompt))
        text = self._answer(self.tokenizer.decode(prompt), sampling)
        ends = [text.index(stop) + len(stop) for stop in sampling.stop if stop in text]
        tokens = self.tokenizer.encode(text[: min(ends)]) if ends else [*self.tokenizer.encode(text), 1]
        chance, top = random.Random(sampling.seed), []
        logprobs = [-3 * chance.random() for _ in tokens[: sampling.max_tokens]]
        if sampling.top_logprobs:
            self.asked.add("top_logprobs")
            other = self.tokenizer.encode("x")[0]
            top = [[(token, p), (other, p - chance.random())] for token, p in zip(tokens, logprobs, strict=False)]
        reason = "length" if len(tokens) > sampling.max_tokens else "completed"
        self.tokens += len(logprobs)
        return Generation(tokens[: sampling.max_tokens], logprobs, reason, top_logprobs=top)

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        self.asked.add("scores")
        return await super().score(prompt, tokens, conversation, top, temperature)


class SlowSpeaker(Speaker):
    """Answers in another order than it is asked."""

    slow = True


class Silent(Speaker):
    """Says nothing of how likely its words are."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        return replace(await super().generate(prompt, sampling, conversation), logprobs=[], top_logprobs=[])


class Verbatim(CharacterTokenizer):
    """One token a text, for texts of a million characters."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The id of the text; none for an empty one."""
        return [self._ids.setdefault(text, len(self._ids))] if text else []


class Stuck(BaseException):
    """A play does not come to an end. No `except Exception` of a part hides it."""


def attempt(who: str, play: Coroutine[Any, Any, T], patience: float) -> T:
    """Run a play to its end.

    Args:
        who: begins the sentence.
        play: the rollout.
        patience: seconds of processor time, and six times as many of waiting, after which it counts as stuck.

    Raises:
        AssertionError: a sentence, for whatever the play raises.
    """
    with _timer(patience):
        try:
            return asyncio.run(asyncio.wait_for(play, 6 * patience))
        except (Stuck, asyncio.TimeoutError):
            raise AssertionError(f"{who} does not come to an end") from None
        except Exception as error:
            text = str(error) or "without a message"
            raise AssertionError(f"{who} breaks: {type(error).__name__}: {text}") from error


@contextlib.contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """Raises `Stuck` after so much processor time, also in a loop that never waits; only in the main thread of Unix."""
    if not hasattr(signal, "SIGVTALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise Stuck

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def changing_generators() -> Iterator[Callable[[], None]]:
    """Gives a function that changes the state of the global generators at every call; restores it at the end."""
    draws = random.Random(0)
    saved = random.getstate(), np.random.get_state()

    def disturb() -> None:
        random.seed(draws.random())
        np.random.seed(draws.getrandbits(31))

    try:
        yield disturb
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
