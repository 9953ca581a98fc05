"""Self-play: the seats of a game, held by one policy or by fixed players, each paid its own reward.

Sources: SPIRAL, arXiv 2506.24119; MARS, arXiv 2510.15414. Page: docs/methods/self_play.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, CountOrZero, NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.policy import DEFAULT_POLICY, saved
from verl_hier.rollout.prompts import fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.schedules.rae import OUTCOME
from verl_hier_plugins.workers.react import parse_action

Player = Literal["policy", "past", "random", "first"]
Heard = Annotated[str, Template("seat", "player")]
UNHEARD = 100
"""Moves of fixed players in a row after which an episode ends in which no agent has a turn."""


@dataclass(frozen=True)
class SeatOptions:
    """One seat."""

    by: Player = "policy"
    """Who plays it: the `policy`; the `past`, a checkpoint that the schedule `opponents` chooses for a task, or the
    policy where it chooses none; or a fixed opponent that makes a `random` possible move or the `first` one."""
    evaluated_by: Player | None = None
    """Who plays it in evaluations; omitted: the same."""
    policy: str = DEFAULT_POLICY
    """Name of the policy that generates its turns. The default one is the mirror: every seat has the weights of now."""
    prompt: Heard | None = None
    """What it reads first; omitted: the `prompt` of all."""
    system: str | None = None
    """Its system message, for chat models; omitted: the `system` of all."""
    level: CountOrZero = 0
    """Its level, for schedules that go by levels."""

    @property
    def speaks(self) -> bool:
        """Whether an agent takes turns in it at all."""
        return not {"policy", "past"}.isdisjoint((self.by, self.evaluated_by))


def _two() -> dict[str, SeatOptions]:
    return {"player_0": SeatOptions(), "player_1": SeatOptions()}


@dataclass(frozen=True)
class SelfPlayOptions:
    """Options of `self_play`.

    Templates may use {instruction}, {observation}, {admissible}, whatever the environment puts into the `info` of its
    reset, the name of the {seat}, and its number {player}.
    """

    seats: Mapping[str, SeatOptions] = field(default_factory=_two)
    """The seats of the game, in its order; the name of a seat is its role and its agent."""
    prompt: Heard = "task: {instruction} | {observation}"
    """What a seat reads first."""
    observation_prompt: Heard = "{observation}"
    """What it reads afterwards, when it is its turn again."""
    system: str | None = None
    """System message for chat models."""
    memory: bool = True
    """Whether a seat keeps one growing context; off: each of its turns begins a new one by `prompt`."""
    action_tag: str | None = None
    """When set, the move is the text inside <tag>…</tag>."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward of a turn without its tag."""
    invalid: Literal["again", "loses"] = "again"
    """What follows a move that the game refuses: the seat is asked `again`, or it `loses`, which ends the game."""
    loser_reward: float = -1.5
    """Reward of a seat that loses by a refused move."""
    others_reward: float = 0.5
    """Reward of each other seat then."""
    max_tokens: Count | None = None
    """Limit of a turn, below the recipe's."""

    def __post_init__(self) -> None:
        if len(self.seats) < 2:
            raise ValueError("seats must name two seats at least; for a single one take the worker react")
        for name in self.seats:
            if not name.isidentifier():
                raise ValueError(f"seats: {name!r} cannot be the name of a seat; use letters, digits and _")
        if not any(seat.by == "policy" for seat in self.seats.values()):
            raise ValueError("seats: nobody learns; leave a seat to the policy")
        for name, seat in self.seats.items():
            if seat.evaluated_by == "past":
                raise ValueError(f"seats.{name}.evaluated_by: there is no past in evaluations; take another player")
            if seat.by == "past" and seat.policy != DEFAULT_POLICY:
                raise ValueError(f"seats.{name}.policy: the schedule says who plays a seat of the past; leave it out")

    def past(self) -> list[str]:
        """The seats that past checkpoints may have."""
        return [name for name, seat in self.seats.items() if seat.by == "past"]

    def learn(self) -> list[str]:
        """The seats that the policy or a past of it has in training."""
        return [name for name, seat in self.seats.items() if seat.by in ("policy", "past")]

    def levels(self) -> dict[str, int]:
        """The seats in which agents take turns, each with its level."""
        return {name: seat.level for name, seat in self.seats.items() if seat.speaks}


def fit(options: SelfPlayOptions, first: StepResult) -> None:
    """Refuse a world that is no game for these seats, by its answer to a reset.

    Raises:
        RecipeError: when it does not say whose turn it is, plays the other seats itself, or has another number of them.
    """
    players = first.info.get("players")
    if not isinstance(first.info.get("player"), int) or not isinstance(players, int):
        raise RecipeError(
            "hier.environment.name: self_play needs a game whose `info` names the `player` whose turn it is and the "
            "number of `players`, such as textarena."
        )
    if "seat" in first.info:
        raise RecipeError(
            "hier.environment.opponent: the environment plays the other seats itself; self_play has all seats, so take "
            "`none`, and give seats to fixed players by hier.worker.seats.NAME.by."
        )
    if players != len(options.seats):
        raise RecipeError(
            f"hier.worker.seats: there are {len(options.seats)} seats ({', '.join(options.seats)}), and the game has "
            f"{players} players; name one seat for each of them, or set hier.environment.players."
        )


class SelfPlay(Worker):
    """See the module."""

    def __init__(self, options: SelfPlayOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        first = await episode.reset()
        fit(self._options, first)
        await _Game(self._options, episode, first).play()


class _Game:
    """One game: a context for each seat, and the last turn of each."""

    def __init__(self, options: SelfPlayOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last = first
        self._names, self._learn = tuple(options.seats), options.learn()
        self._contexts: dict[int, Context] = {}
        self._turns: dict[int, Turn] = {}
        self._mover: int | None = None
        self._spoken: Turn | None = None
        self._past = self._chosen() if options.past() and not episode.validates else None

    def _chosen(self) -> tuple[int, str] | None:
        """The checkpoint that this task is played against: its step, and the name of its policy."""
        chosen = self._episode.told.get("opponent")
        if not isinstance(chosen, dict):
            seat = self._options.past()[0]
            raise RecipeError(
                f"hier.schedule.name: seat {seat} is played by past checkpoints, and nothing chooses one; take the "
                "schedule `opponents`, or another player in hier.worker.seats."
            )
        return (int(chosen["step"]), saved(str(chosen["path"]))) if chosen else None

    async def play(self) -> None:
        """Move after move, until the game is over; then every seat has its reward."""
        unheard = 0
        while not (self._last.done or self._last.truncated) and unheard < UNHEARD:
            seat = int(self._last.info["player"]) % len(self._names)
            options = self._options.seats[self._names[seat]]
            by = (self._episode.validates and options.evaluated_by) or options.by
            if by not in ("policy", "past"):
                unheard += 1
                await self._fixed(by, seat)
                continue
            unheard = 0
            if not await self._turn(seat, options):
                return
        if self._last.done:
            self._settle()

    async def _turn(self, seat: int, options: SeatOptions) -> bool:
        """One move of an agent; whether the game goes on after it."""
        turn = await self._episode.generate(self._asked(seat, options), max_tokens=self._options.max_tokens)
        self._spoken = turn
        self._turns[seat], self._mover = turn, seat
        action = parse_action(turn.text, self._options.action_tag)
        past = self._past is not None and options.by == "past"
        turn.mark(seat=seat, format=int(action is not None), past=int(past))
        turn.mark(opponent=self._past[0] if self._past is not None else 0)
        if action is None:
            turn.mark(valid=False, failure="no_action")
            turn.reward(-self._options.format_penalty)
        loses = self._options.invalid == "loses"

        def worth(step: StepResult) -> float:
            if loses and not step.valid:
                return self._options.loser_reward
            return self._reward(step, seat) if step.done else step.reward

        self._last = await self._episode.act(action or "", worth=worth)
        if loses and not self._last.valid:
            for other, last in self._turns.items():
                if other != seat:
                    self._episode.pay(last, self._options.others_reward)
            lost, won = self._options.loser_reward, self._options.others_reward
            self._note_outcome(lambda other: lost if other == seat else won)
            return False
        return True

    async def _fixed(self, by: Player, seat: int) -> None:
        """One move of a fixed player, whose reward is nobody's."""
        moves = self._last.admissible
        if not moves:
            raise RecipeError(
                f"hier.worker.seats.{self._names[seat]}.by: this game does not say which moves are possible, so that "
                f"{by!r} cannot play it; take `policy`."
            )
        move = moves[0] if by == "first" else self._episode.rng.choice(moves)
        self._mover = None
        self._last = await self._episode.act(move, worth=lambda step: 0.0)

    def _asked(self, seat: int, options: SeatOptions) -> Context:
        """The context of a seat, with what it has not read yet."""
        name, all_ = self._names[seat], self._options
        known = fields(self._episode, self._last, self._first, seat=name, player=str(seat))
        begins = seat not in self._contexts or not all_.memory
        if begins:
            system = all_.system if options.system is None else options.system
            past = self._past[1] if self._past is not None and options.by == "past" else None
            self._contexts[seat] = self._episode.context(name, system=system, policy=past or options.policy)
        context = self._contexts[seat]
        if begins and options.prompt is not None:
            observe(context, options, "prompt", known, prefix=f"seats.{name}.")
        else:
            observe(context, all_, "prompt" if begins else "observation_prompt", known)
        return context

    def _settle(self) -> None:
        """Every seat's reward on its own last turn; the one that moved last has it already."""
        for seat, turn in self._turns.items():
            if seat != self._mover:
                self._episode.pay(turn, self._reward(self._last, seat))
        self._note_outcome(lambda seat: self._reward(self._last, seat))

    def _note_outcome(self, worth: Callable[[int], float]) -> None:
        """What the game was worth for every seat that learns, on the last turn of an agent in it.

        A seat that had no turn has no other place for it, and its running mean moves all the same (schedule `rae`).
        """
        if self._spoken is not None:
            outcomes: dict[str, Any] = {OUTCOME + name: float(worth(self._names.index(name))) for name in self._learn}
            self._spoken.mark(**outcomes)

    def _reward(self, step: StepResult, seat: int) -> float:
        """What the end of the game is worth for a seat; the one reward of a game without several is everybody's."""
        rewards = step.info.get("rewards")
        return float(rewards[seat]) if isinstance(rewards, list) and seat < len(rewards) else step.reward


def transcribe(options: SelfPlayOptions, transcript: Transcript) -> list[str]:
    """What a policy has to say in all seats to make the moves of an episode in which one agent played them all.

    Raises:
        ValueError: in one word, when a seat has a fixed player, whose moves would be others.
    """
    if len(options.learn()) < len(options.seats):
        raise ValueError("fixed_player")
    moves = [call.action for turn in transcript.turns for call in turn.calls]
    tag = options.action_tag
    return [f"<{tag}>{move}</{tag}>" if tag else move for move in moves]


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="self_play",
        factory=SelfPlay,
        options=SelfPlayOptions,
        summary="all seats of a game on one policy, or some against fixed players; a reward for each seat",
        source="SPIRAL, arXiv 2506.24119; MARS, arXiv 2510.15414",
        active_roles=SelfPlayOptions.levels,
        provides=lambda options: ("seat", "format", "past", "opponent", *(OUTCOME + name for name in options.learn())),
        saved_roles=SelfPlayOptions.past,
        transcribe=transcribe,
        fits=fit,
    )
