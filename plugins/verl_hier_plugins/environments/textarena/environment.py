"""TextArena as an `Environment`: moves that are taken back when the game refuses them, chance of its own, forks."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textarena.chance import Chance
from verl_hier_plugins.environments.textarena.expert import TextarenaExpert
from verl_hier_plugins.environments.textarena.games import GAMES, anchor, listed_moves
from verl_hier_plugins.environments.textarena.library import refused, start
from verl_hier_plugins.environments.textarena.options import TextarenaOptions, family
from verl_hier_plugins.environments.textarena.texts import NOT_POSSIBLE, Message, Reader

OVER = "the game is over"
OUTCOMES = {1: "won", 0: "drawn", -1: "lost"}


class TextarenaEnvironment(Environment):
    """One game. Everything it holds is its own, so a fork is a deep copy.

    Attributes:
        game: TextArena's object, for experts and tests.
    """

    def __init__(self, options: TextarenaOptions) -> None:
        self._options = options
        self._known = GAMES.get(family(options.game))
        self.game: Any = None

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Its own seed decides the start; that and `seed` together decide what chance does afterwards."""
        options = self._options
        chance = Chance("start", task["seed"])
        with chance.at_play():
            self.game = start(options.game, options.settings, options.players, task["seed"])
        self._chance = Chance("play", task["seed"], seed)
        self._rival = random.Random(f"rival-{task['seed']}-{seed}")
        self._seat: int | None = None if options.opponent == "none" else task["seat"] % self.game.state.num_players
        self._steps = 0
        self._readers = [Reader(n, options.board == "always") for n in range(self.game.state.num_players)]
        self._rules = [r.rules(self.game.state.observations[n]) for n, r in enumerate(self._readers)]
        self._unread = set(range(len(self._rules)))
        self._listed: dict[int, list[str]] = {}
        self._admissible: tuple[str, ...] = ()
        self._let_others_play()
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Make a move for the player whose turn it is; brackets around it may be left out."""
        if self.game.state.done:
            return self._step(OVER, valid=False)
        self._steps += 1
        player = self._player
        reason = self._try(action)
        if reason is not None:
            text = NOT_POSSIBLE if self._options.observation == "short" else reason
            return self._step(text, -self._options.invalid_penalty, valid=False)
        self._let_others_play()
        return self._answer(player)

    def fork(self) -> TextarenaEnvironment:
        """A copy in the same state, its luck included: what chance does next, it does in both."""
        twin = TextarenaEnvironment(self._options)
        held = {name: value for name, value in vars(self).items() if name not in vars(twin) or name == "game"}
        twin.__dict__.update(copy.deepcopy(held))
        return twin

    def close(self) -> None:
        """Let go of the game."""
        self.game = None

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> TextarenaExpert:
        """The solver of a puzzle; it sees the whole board, so there is no stage to skip and nothing to remember."""
        if self._known is None or self._known.solve is None:
            able = ", ".join(name for name, known in GAMES.items() if known.solve)
            raise RecipeError(f"hier.environment.game: no expert for {self._options.game}; there is one for {able}.")
        return TextarenaExpert(self, self._known)

    def vocabulary(self) -> list[str]:
        """Words of the short style."""
        if self._known is None or self._options.observation == "full":
            return []
        return [
            self._known.goal,
            *self._known.words,
            NOT_POSSIBLE,
            *OUTCOMES.values(),
            *(f"row {n}" for n in range(10)),
            *map(str, range(10)),
        ]

    @property
    def _player(self) -> int:
        """Whose turn it is."""
        return int(self.game.state.current_player_id)

    def moves(self) -> list[str]:
        """Moves that are possible now, as far as the game is known or lists them."""
        if self.game.state.done:
            return []
        if self._known is not None:
            return self._known.moves(self.game)
        listed = self._listed.get(self._player, [])
        return [move for move in listed if not refused(self._after(move)[0])]

    def _after(self, action: str) -> tuple[Any, Chance]:
        """A copy of the game after an action, and its chance; here nothing has happened."""
        trial, chance = copy.deepcopy((self.game, self._chance))
        with chance.at_play():
            trial.step(_bracketed(action))
        return trial, chance

    def _try(self, action: str) -> str | None:
        """Make a move, or say why the game refuses it."""
        heard = len(self.game.state.observations[self._player])
        trial, chance = self._after(action)
        if refused(trial):
            said: list[Message] = trial.state.observations[self._player][heard:]
            reasons = [text for _, text, kind in said if kind.name == "GAME_ADMIN"]
            return reasons[0] if reasons else NOT_POSSIBLE
        self.game, self._chance = trial, chance
        # The log of the whole game is only there to be drawn, and would make every copy longer.
        self.game.state.logs.clear()
        return None

    def _let_others_play(self) -> None:
        """Random moves until it is the policy's turn, where the other seats are not policies."""
        while self._seat is not None and not self.game.state.done and self._player != self._seat:
            self._listen(self._player)
            moves = self.moves()
            if not moves:
                raise RecipeError(
                    f"hier.environment.opponent: {self._options.game} does not say which moves are possible, so there "
                    "is no random opponent; take `none`."
                )
            self._try(self._rival.choice(moves))

    def _listen(self, player: int) -> list[Message]:
        """A player's new messages, and the moves that they list."""
        state = self.game.state
        messages: list[Message] = state.observations[player]
        state.observations[player] = []
        for sender, text, _ in messages:
            if sender == -1 and (moves := listed_moves(text)):
                self._listed[player] = moves
        return messages

    def _answer(self, actor: int | None = None) -> StepResult:
        """What the next player reads, or after the end the one who is a policy, or who moved last."""
        done = bool(self.game.state.done)
        viewer = self._seat if self._seat is not None else actor if done and actor is not None else self._player
        messages = self._listen(viewer)
        reader = self._readers[viewer]
        if self._options.observation == "short" and self._known is not None:
            text = self._outcome(viewer) if done else reader.rows(self._known.rows(self.game, viewer))
        else:
            text = "\n".join(part for part in (reader.read(messages), self._reason(viewer) if done else "") if part)
        if self._options.rules and viewer in self._unread:
            text = f"{self._rules[viewer]}\n{text}"
        self._unread.discard(viewer)
        self._admissible = tuple(self.moves())
        reward = self._reward(viewer) if done else 0.0
        return self._step(text, reward)

    def _step(self, text: str, reward: float = 0.0, valid: bool = True) -> StepResult:
        state = self.game.state
        done = bool(state.done)
        info: dict[str, Any] = {
            "player": self._player,
            "players": state.num_players,
            "won": done and self._won(self._seat or 0),
            "score": self._score(self._seat or 0) if done else 0.0,
        }
        if done:
            info["rewards"] = [self._score(player) for player in range(state.num_players)]
        if not self._steps:
            info |= {"rules": self._rules[self._seat if self._seat is not None else self._player]}
            info |= {} if self._seat is None else {"seat": self._seat}
        return StepResult(
            text=text,
            reward=reward,
            done=done,
            truncated=not done and self._steps >= self._options.max_steps,
            valid=valid,
            admissible=self._admissible,
            anchor=anchor(self.game, self._known),
            info=info,
        )

    def _score(self, player: int) -> float:
        """TextArena's reward of a player, after the end."""
        return float((self.game.state.rewards or {}).get(player, 0.0))

    def _won(self, player: int) -> bool:
        """A puzzle is won with the full reward of 1, a game with a reward above 0."""
        score = self._score(player)
        return score >= 1.0 if self.game.state.num_players == 1 else score > 0

    def _reward(self, player: int) -> float:
        return self._score(player) if self._options.reward == "score" else float(self._won(player))

    def _reason(self, player: int) -> str:
        return str(self.game.state.game_info[player].get("reason") or "")

    def _outcome(self, player: int) -> str:
        score = self._score(player)
        if self.game.state.num_players == 1:
            return OUTCOMES[1 if self._won(player) else -1]
        return OUTCOMES[(score > 0) - (score < 0)]


def _bracketed(action: str) -> str:
    """TextArena reads moves in square brackets."""
    action = action.strip()
    return action if "[" in action or "]" in action else f"[{action}]"
