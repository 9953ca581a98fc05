"""TextArena as an `Environment`, with separate random states, forks, and refused moves that change nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any, Literal

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.reward_values import reward_of
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.textarena.chance import Chance
from verl_hier_plugins.environments.textarena.games import BRACKETS, GAMES, Game, anchor, listed_moves
from verl_hier_plugins.environments.textarena.library import refused, start
from verl_hier_plugins.environments.textarena.options import TextarenaOptions, family
from verl_hier_plugins.environments.textarena.texts import NOT_POSSIBLE, Message, Reader

OVER = "the game is over"
OUTCOMES = {1: "won", 0: "drawn", -1: "lost"}

MovesATurn = Literal["one", "several", "unknown"]


class TextarenaEnvironment(Environment):
    """One game. An instance shares nothing with others, so a fork is a deep copy.

    Attributes:
        game: TextArena's object, for experts and tests.
    """

    def __init__(self, options: TextarenaOptions) -> None:
        self._options = options
        self._name = options.game
        self.game: Any = None

    @property
    def _known(self) -> Game | None:
        """What this plugin knows of the game."""
        return GAMES.get(family(self._name))

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a task. Its own seed determines the start; that and `seed` determine all later random events."""
        options = self._options
        self._name = task.get("game", options.game)
        chance = Chance("start", task["seed"])
        with chance.at_play():
            self.game = start(self._name, options.settings_of(self._name), options.players, task["seed"])
        self._chance = Chance("play", task["seed"], seed)
        self._opponent_rng = random.Random(f"rival-{task['seed']}-{seed}")
        self._seat: int | None = None if options.opponent == "none" else task["seat"] % self.game.state.num_players
        self._steps = 0
        self._readers = [Reader(n, options.board == "always") for n in range(self.game.state.num_players)]
        self._rules = [r.rules(self.game.state.observations[n]) for n, r in enumerate(self._readers)]
        self._unread = set(range(len(self._rules)))
        self._listed: dict[int, list[str]] = {}
        self._admissible: tuple[str, ...] = ()
        self._play_opponents()
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Make a move for the current player; brackets around it are optional."""
        if self.game.state.done:
            return self._step(OVER, valid=False)
        self._steps += 1
        player = self._player
        reason = self._try(action)
        if reason is not None:
            text = NOT_POSSIBLE if self._options.observation == "short" else reason
            return self._step(text, -self._options.invalid_penalty, valid=False)
        self._play_opponents()
        return self._answer(player)

    def fork(self) -> TextarenaEnvironment:
        """A copy in the same state, including the random state: the next random events are equal in both."""
        twin = TextarenaEnvironment(self._options)
        held = {name: value for name, value in vars(self).items() if name != "_options"}
        twin.__dict__.update(copy.deepcopy(held))
        return twin

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """The solver of a puzzle, or a sensible player of a game. It sees the whole board, and `skip_stage` and
        `remember` have no effect."""
        from verl_hier_plugins.environments.textarena.expert import TextarenaExpert

        if self._known is None or not (self._known.solve or self._known.good):
            able = ", ".join(name for name, known in GAMES.items() if known.solve or known.good)
            raise RecipeError(f"hier.environment.game: no expert for {self._name}; there is one for {able}.")
        return TextarenaExpert(self, self._known, rng)

    def vocabulary(self) -> list[str]:
        """The words of short observations."""
        if self._options.observation == "full":
            return []
        games = [known for name in self._options.names if (known := GAMES.get(family(name))) is not None]
        numbers = (*(f"row {n}" for n in range(10)), *map(str, range(10)))
        words = [word for known in games for word in (known.goal, *known.words)]
        return [*words, NOT_POSSIBLE, *OUTCOMES.values(), *numbers]

    @property
    def _player(self) -> int:
        """The current player."""
        return int(self.game.state.current_player_id)

    def moves(self) -> list[str]:
        """The possible moves, if this plugin knows the game or the game lists them."""
        if self.game.state.done:
            return []
        if self._known is not None:
            return self._known.moves(self.game)
        listed = self._listed.get(self._player, [])
        return [move for move in listed if not refused(self._after(move)[0])]

    def _moves_a_turn(self) -> MovesATurn:
        if self._known is not None:
            return "several" if self._known.several else "one"
        return "one" if self._player in self._listed else "unknown"

    def _after(self, action: str) -> tuple[Any, Chance]:
        """A copy of the game and its random state after an action; the game itself does not change."""
        trial, chance = copy.deepcopy((self.game, self._chance))
        with chance.at_play():
            trial.step(bracketed(action, self._moves_a_turn()))
        return trial, chance

    def _try(self, action: str) -> str | None:
        """Make a move; returns the reason when the game refuses it."""
        known = len(self.game.state.observations[self._player])
        trial, chance = self._after(action)
        if refused(trial):
            answers: list[Message] = trial.state.observations[self._player][known:]
            reasons = [text for _, text, kind in answers if kind.name == "GAME_ADMIN"]
            return reasons[0] if reasons else NOT_POSSIBLE
        self.game, self._chance = trial, chance
        # The log serves for rendering only, and would make every copy slower.
        self.game.state.logs.clear()
        return None

    def _play_opponents(self) -> None:
        """Play random moves for the other players until it is the policy's turn."""
        while self._seat is not None and not self.game.state.done and self._player != self._seat:
            self._new_messages(self._player)
            moves = self.moves()
            if not moves:
                raise RecipeError(
                    f"hier.environment.opponent: {self._name} does not say which moves are possible, so there "
                    "is no random opponent; take `none`."
                )
            self._try(self._opponent_rng.choice(moves))

    def _new_messages(self, player: int) -> list[Message]:
        """Take a player's new messages, and note the moves that they list."""
        state = self.game.state
        messages: list[Message] = state.observations[player]
        state.observations[player] = []
        for sender, text, _ in messages:
            if sender == -1 and (moves := listed_moves(text)):
                self._listed[player] = moves
        return messages

    def _answer(self, actor: int | None = None) -> StepResult:
        """The observation of the next player, or at the end of the one that is a policy or moved last."""
        done = bool(self.game.state.done)
        viewer = self._seat if self._seat is not None else actor if done and actor is not None else self._player
        messages = self._new_messages(viewer)
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
            info["rewards"] = [self._reward(player) for player in range(state.num_players)]
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
        """TextArena's reward of a player at the end."""
        return reward_of("TextArena's reward", (self.game.state.rewards or {}).get(player, 0.0))

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


def bracketed(action: str, moves: MovesATurn) -> str:
    """What TextArena is told: it expects moves in square brackets, and plays the first that it finds.

    Args:
        action: a turn, whose thoughts are not told.
        moves: how many a turn has. With one it is what the last brackets hold, because those before compare moves;
            with several these are the last brackets that stand side by side. Where it is unknown, all of it is told.
    """
    said = without_thoughts(action).strip()
    found = [] if moves == "unknown" else [(part.start(), part.end()) for part in BRACKETS.finditer(said)]
    if found:
        first = len(found) - 1
        while moves == "several" and first and not said[found[first - 1][1] : found[first][0]].strip(" ,;\n\t"):
            first -= 1
        return said[found[first][0] : found[-1][1]]
    return said if "[" in said or "]" in said else f"[{said}]"
