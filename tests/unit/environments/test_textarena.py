"""TextArena as an environment: conformance, moves, turns and opponents, compaction, splits, solvers, options."""

import copy
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiers import spread
from verl_hier.coldstart.vocabulary import split_words
from verl_hier.environments.splits import split_of
from verl_hier.errors import RecipeError
from verl_hier.host.describe import options_of
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.textarena import SPEC
from verl_hier_plugins.environments.textarena.chance import Chance
from verl_hier_plugins.environments.textarena.environment import TextarenaEnvironment
from verl_hier_plugins.environments.textarena.games import GAMES, canonical, listed_moves
from verl_hier_plugins.environments.textarena.options import SHORT, TextarenaOptions

BOX = {"dim_room": [6, 6], "num_boxes": 1}
PUZZLES = [("FrozenLake-v0", {"size": 5, "num_holes": 6}), ("Sokoban-v0", BOX), ("TowerOfHanoi-v0", {"num_disks": 4})]


def world(**options):
    options = {"pool": 4, "validation": 2, **options}
    made = TextarenaOptions(**options)
    return TextarenaEnvironment(made), SPEC.tasks(made, "train")


@pytest.mark.parametrize(
    "options",
    spread(
        3,
        [
            {"board": "changes"},
            {"game": "Sokoban-v0", "settings": BOX, "observation": "short", "board": "changes"},
            {"game": "KuhnPoker-v0"},
            {"game": "ConnectFour-v0", "opponent": "random", "board": "changes"},
            {"game": "PigDice-v0", "opponent": "random"},
            {"game": "2048-v0-ultra-easy"},
        ],
    ),
    ids=lambda options: options.get("game", "FrozenLake-v0"),
)
def test_conforms(options):
    # One game behind the pool is enough: what differs between games is in this process.
    isolated = options.get("game") == "PigDice-v0"
    check_environment(SPEC, TextarenaOptions(pool=4, validation=2, **options), tasks=1, isolated=isolated)


# ---- moves and states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", SHORT)
def test_moves_are_exactly_those_that_the_game_takes(game):
    environment, tasks = world(game=f"{game}-v0", settings=BOX if game == "Sokoban" else {}, max_steps=60)
    rng = random.Random(0)
    for task in tasks:
        step = environment.reset(task, 0)
        while not (step.done or step.truncated):
            taken = [word for word in GAMES[game].words if environment.fork().step(word).valid]
            # TextArena takes a disk's move to where it is, which nobody needs.
            assert sorted(step.admissible) == [w for w in sorted(taken) if game != "TowerOfHanoi" or w[0] != w[2]]
            step = environment.step(rng.choice(step.admissible))


@pytest.mark.parametrize("game", SHORT)
def test_equal_anchors_are_equal_boards(game):
    environment, tasks = world(game=f"{game}-v0", settings=BOX if game == "Sokoban" else {}, observation="short")
    rng, seen = random.Random(1), {}
    for task in tasks:
        step = environment.reset(task, 0)
        while not (step.done or step.truncated):
            player = step.info["player"]
            rows = GAMES[game].rows(environment.game, player)
            assert seen.setdefault(step.anchor, (player, rows)) == (player, rows)
            step = environment.step(rng.choice(step.admissible))


def test_two_ways_to_one_state_meet():
    environment, tasks = world()
    first = environment.reset(tasks[0], 0)
    there = {"right": "left", "down": "up"}
    move = next(move for move in first.admissible if not environment.fork().step(move).done)
    assert environment.step(move).anchor != first.anchor
    assert environment.step(there[move]).anchor == first.anchor, "no clock and no record of the past"


def test_a_refused_move_is_taken_back_and_never_ends_the_game():
    environment, tasks = world(invalid_penalty=0.1)
    first = environment.reset(tasks[0], 0)
    for _ in range(5):
        step = environment.step("up")
        assert (step.valid, step.reward, step.done, step.anchor) == (False, -0.1, False, first.anchor)
        assert "hit a wall" in step.text
    # Three moves in one answer, the second of which is impossible: TextArena would keep the first.
    environment, tasks = world(game="TowerOfHanoi-v0")
    first = environment.reset(tasks[0], 0)
    assert environment.step("[A C] [A C]").anchor == first.anchor
    assert environment.step("[A C] [A B]").valid


def test_brackets_are_optional_and_text_around_them_is_not_read():
    environment, tasks = world(game="TowerOfHanoi-v0")
    environment.reset(tasks[0], 0)
    one = environment.fork().step("a c")
    assert one.anchor == environment.fork().step(" I take [A C] \n").anchor and one.valid
    assert not environment.step("xyzzy").valid


def test_the_game_is_over_when_it_is_over():
    environment, tasks = world(game="TicTacToe-v0")
    environment.reset(tasks[0], 0)
    for move in "0142":
        environment.step(move)
    last = environment.step("8")
    assert last.done and last.info["won"] is (last.info["rewards"][0] > 0)
    after = environment.step("7")
    assert after.done and not after.valid and after.admissible == () and after.reward == 0.0


# ---- several players -------------------------------------------------------------------------------------------------


def test_whose_turn_it_is_and_what_each_player_reads():
    environment, tasks = world(game="TicTacToe-v0")
    step = environment.reset(tasks[0], 0)
    assert (step.info["player"], step.info["players"]) == (0, 2)
    assert step.text.startswith("You are Player 0") and step.info["rules"].startswith("You are Player 0")
    step = environment.step("4")
    assert step.info["player"] == 1
    assert step.text.startswith("You are Player 1") and "[Player 0] [4]" in step.text
    refused = environment.step("4")
    assert refused.info["player"] == 1, "a refused move does not pass the turn on"
    step = environment.step("0")
    assert step.info["player"] == 0 and "[Player 1] [0]" in step.text and "You are" not in step.text
    for move in ("3", "1", "5"):
        step = environment.step(move)
    assert step.done and step.reward == 1.0, "the reward is that of the player who moved"
    assert step.info["rewards"] == [1.0, -1.0] and step.info["won"] and step.info["score"] == 1.0


def test_a_loser_who_moves_last_is_paid_as_one():
    environment, tasks = world(game="KuhnPoker-v0", settings={"max_rounds": 1})
    step = environment.reset(tasks[0], 0)
    environment.step("bet")
    step = environment.step("fold")
    folded = 1 - step.info["rewards"].index(1.0)
    assert step.done and step.reward == -1.0 == step.info["rewards"][folded]
    assert step.info["won"] is (folded == 1)


def test_players_do_not_see_each_others_cards():
    environment, tasks = world(game="KuhnPoker-v0", observation="short", rules=False)
    for task in tasks:
        first = environment.reset(task, 0)
        second = environment.step("check")
        cards = [re.search(r"card (\w)", step.text).group(1) for step in (first, second)]
        assert cards[0] != cards[1]
        assert cards[1] not in re.findall(r"card (\w)", first.text)


def test_a_random_opponent_makes_it_a_world_of_one():
    environment, tasks = world(game="TicTacToe-v0", opponent="random", pool=20)
    seats, results, rng = set(), set(), random.Random(0)
    for task in tasks:
        step = environment.reset(task, 0)
        seat = step.info["seat"]
        seats.add(seat)
        while not step.done:
            assert step.info["player"] == seat
            step = environment.step(rng.choice(step.admissible))
        assert step.reward == step.info["rewards"][seat] == step.info["score"]
        assert step.info["won"] is (step.reward > 0)
        results.add(step.reward)
    assert seats == {0, 1}
    assert {1.0, -1.0} <= results
    environment, tasks = world(game="TicTacToe-v0", opponent="random", seat=1)
    assert all(environment.reset(task, 0).info["seat"] == 1 for task in tasks)


def test_luck_is_the_episodes_and_a_fork_keeps_it():
    environment, tasks = world(game="ConnectFour-v0", opponent="random", seat=0, rules=False)
    answers = set()
    for seed in range(8):
        environment.reset(tasks[0], seed)
        fork = environment.fork()
        step = environment.step("3")
        assert fork.step("3") == step
        answers.add(step.text)
    assert len(answers) > 1, "other seeds, other opponents"


def test_chance_leaves_the_global_generators_alone():
    environment, tasks = world(game="2048-v0-ultra-easy")
    environment.reset(tasks[0], 0)
    before = random.getstate()
    texts = [environment.step(move).text for move in ("left", "up", "left", "up")]
    assert random.getstate() == before
    environment.reset(tasks[0], 0)
    random.seed(99)
    assert [environment.step(move).text for move in ("left", "up", "left", "up")] == texts


def test_a_copied_chance_goes_on_by_itself():
    chance = Chance("x")
    draws = []
    for state in (chance, copy.deepcopy(chance), copy.deepcopy(chance)):
        with state.at_play():
            draws.append([random.random() for _ in range(3)])
    assert draws[0] == draws[1] == draws[2]
    with chance.at_play():
        assert random.random() not in draws[0]


# ---- what is read ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["full", "short"]))
def test_changes_lead_to_the_same_board(seed, walk, style):
    """Whoever writes the changed rows into the first board has the whole one."""
    always = TextarenaEnvironment(TextarenaOptions(observation=style, rules=False))
    changes = TextarenaEnvironment(TextarenaOptions(observation=style, rules=False, board="changes"))
    task, rng = {"seed": seed, "seat": 0}, random.Random(walk)
    step, less = always.reset(task, 0), changes.reset(task, 0)
    board, joint = less.text, " | " if style == "short" else "\n"
    assert board == step.text
    for _ in range(6):
        move = rng.choice(step.admissible)
        step, less = always.step(move), changes.step(move)
        if step.done:
            return
        assert len(less.text) < len(step.text)
        rows = board.split(joint)
        for number, row in re.findall(r"(?:\[line |row )(\d+)\]? (.*?)(?: \| (?=row)|\n|$)", less.text):
            rows[int(number)] = row
        board = joint.join(rows)
        assert step.text.endswith(board)


def test_an_unchanged_board_is_not_shown_again():
    environment, tasks = world(game="ConnectFour-v0", opponent="random", seat=0, board="changes", rules=False)
    first = environment.reset(tasks[0], 0)
    assert first.text.count("\n") == 8
    step = environment.step("3")
    boards = [line for line in step.text.splitlines() if line.startswith("[line ")]
    assert len(boards) in (1, 2), "both discs are in the last row, or one upon the other, and shown once"


def test_rules_are_said_once_or_not_at_all():
    environment, tasks = world()
    first = environment.reset(tasks[0], 0)
    assert first.text.startswith("Welcome to Frozen Lake!") and "Welcome" not in environment.step("right").text
    environment, _ = world(rules=False)
    again = environment.reset(tasks[0], 0)
    assert again.text.startswith("Current Board") and again.info["rules"] + "\n" + again.text == first.text


@pytest.mark.parametrize("game", SHORT)
def test_short_boards_are_whole_in_the_words_of_a_tiny_model(game):
    options = {"game": f"{game}-v0", "settings": BOX if game == "Sokoban" else {}}
    environment, tasks = world(**options, observation="short", rules=False)
    known = set(split_words(" | ".join(environment.vocabulary())))
    for task in tasks:
        first = environment.reset(task, 0)
        text = " | ".join((first.text, environment.step("xyzzy").text, environment.step(first.admissible[0]).text))
        assert "".join(split_words(text)).replace(" ", "") == text.replace(" ", ""), "no sign is lost"
        assert {"not", "possible", *split_words(first.admissible[0])} <= known


def test_outcomes_in_words():
    environment, tasks = world(observation="short", rules=False, settings={"size": 3, "num_holes": 1})
    step = environment.reset(tasks[0], 0)
    expert = environment.expert(random.Random(0))
    while not step.done:
        step = environment.step(expert.advise(0))
    assert step.text == "won" and step.reward == 1.0 and step.info["won"]


def test_the_reward_can_be_the_outcome_alone():
    holes = {}
    for reward in ("score", "won"):
        environment, tasks = world(reward=reward, pool=8)
        for task in tasks:
            step, rng = environment.reset(task, 0), random.Random(5)
            while not (step.done or step.truncated):
                step = environment.step(rng.choice(step.admissible))
            holes.setdefault(reward, []).append((step.reward, step.info["score"], step.info["won"]))
    assert any(0 < score < 1 for _, score, _ in holes["score"]), "TextArena pays for the way to a hole"
    assert all(reward == score for reward, score, _ in holes["score"])
    assert all(reward == float(won) for reward, _, won in holes["won"])


# ---- the expert, the tasks, the options ------------------------------------------------------------------------------


@pytest.mark.parametrize(("game", "options"), PUZZLES, ids=[game for game, _ in PUZZLES])
def test_the_expert_wins_and_no_way_is_shorter(game, options):
    environment, tasks = world(game=game, settings=options, pool=12, max_steps=100)
    for task in tasks:
        step = environment.reset(task, 0)
        expert = environment.expert(random.Random(0))
        plan = GAMES[game.partition("-")[0]].solve(environment.game)
        moves = 0
        while not step.done:
            step = environment.step(expert.advise(0))
            moves += 1
        assert step.info["won"] and step.valid and moves == len(plan)
        assert expert.advise(0) is None
    if game == "TowerOfHanoi-v0":
        assert moves == 2**4 - 1


def test_the_expert_knows_when_all_is_lost():
    environment, _ = world(game="Sokoban-v0", settings=BOX)
    rng, lost = random.Random(0), 0
    for seed in range(40):
        environment.reset({"seed": seed, "seat": 0}, 0)
        for _ in range(25):
            if environment.game.state.done:
                break
            environment.step(rng.choice(environment.moves()))
        lost += not environment.game.state.done and environment.expert(rng).advise(0) is None
    assert lost, "a box in a corner cannot be saved"


def test_the_mistakes_of_the_expert_are_refused():
    environment, tasks = world()
    environment.reset(tasks[0], 0)
    expert, rng = environment.expert(random.Random(0)), random.Random(1)
    wrong = {expert.mistake(0, rng) for _ in range(20)}
    assert wrong == {"up", "left"}, "the start is in the corner"
    assert not environment.step(wrong.pop()).valid
    with pytest.raises(RecipeError, match="no expert for ConnectFour-v0; there is one for FrozenLake, Sokoban"):
        world(game="ConnectFour-v0")[0].expert(rng)


def test_the_expert_of_a_game_rarely_loses_to_a_random_player():
    environment, tasks = world(game="TicTacToe-v0", opponent="random", pool=40)
    scores = []
    for task in tasks:
        step = environment.reset(task, 0)
        expert = environment.expert(random.Random(0))
        while not step.done:
            step = environment.step(expert.advise(0))
            assert step.valid
        scores.append(step.info["score"])
    assert sum(score < 0 for score in scores) <= 4 and sum(score > 0 for score in scores) >= 30


def test_the_expert_at_cards_goes_by_its_card():
    environment, tasks = world(game="KuhnPoker-v0-short", observation="short", rules=False, pool=20)
    told = set()
    for task in tasks:
        step = environment.reset(task, 0)
        expert = environment.expert(random.Random(0))
        while not step.done:
            card, move = step.text.split("card ")[1][0], expert.advise(0)
            told.add((card, move))
            step = environment.step(move)
    assert {move for card, move in told if card == "k"} <= {"bet", "call"}
    assert {move for card, move in told if card == "j"} == {"check", "fold"}


def test_several_games_come_in_turn():
    environment, tasks = world(game="TicTacToe-v0", games=("KuhnPoker-v0-short",), observation="short", rules=False)
    assert [task["data_source"] for task in tasks[:2]] == ["textarena_TicTacToe-v0", "textarena_KuhnPoker-v0-short"]
    assert len({task["id"] for task in tasks}) == 4
    assert environment.reset(tasks[0], 0).text.count("e") == 9
    step = environment.reset(tasks[1], 0)
    assert step.text.startswith("round 1 | card")
    assert environment.fork().step(step.admissible[0]).valid and "check" in " ".join(environment.vocabulary())


def test_every_player_is_told_its_reward():
    environment, tasks = world(game="TicTacToe-v0", reward="won")
    environment.reset(tasks[0], 0)
    for square in "03142":
        step = environment.step(square)
    assert step.info["rewards"] == [1.0, 0.0] and step.reward == 1.0


def test_a_start_is_in_one_split_and_once():
    # The default pools are there.
    options = TextarenaOptions()
    environment = TextarenaEnvironment(options)
    starts = {}
    for split in ("train", "val", "test"):
        tasks = SPEC.tasks(options, split)
        starts[split] = [environment.reset(task, 0).anchor for task in tasks]
        assert len(set(starts[split])) == len(tasks) == (150 if split == "train" else 40)
        assert all(split_of(anchor) == split for anchor in starts[split])
    other = SPEC.tasks(TextarenaOptions(pool=20, validation=20, seed=5), "val")
    assert all(split_of(environment.reset(task, 0).anchor) == "val" for task in other)
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_games_with_few_starts_differ_by_their_seeds():
    options = TextarenaOptions(game="KuhnPoker-v0", opponent="random", pool=40, validation=40)
    seeds = {split: {task["seed"] for task in SPEC.tasks(options, split)} for split in ("train", "val", "test")}
    assert [len(found) for found in seeds.values()] == [40, 40, 40]
    assert not seeds["train"] & seeds["val"] and not seeds["val"] & seeds["test"]


def test_moves_that_a_game_lists():
    assert listed_moves("Available Moves: '[4]', '[5]'") == ["4", "5"]
    assert listed_moves("Your valid actions are: [roll] or [hold], [roll]") == ["roll", "hold"]
    assert listed_moves("Type [up] or [down].\nThe available actions are few") == []


def test_canonical_states():
    class Knot:
        def __init__(self):
            self.me, self.tags, self.turn = self, {"b", "a"}, 3

    assert canonical(Knot()) == canonical(Knot())
    assert canonical({"x": (1, [2]), "turn": 1}) == canonical({"turn": 9, "x": [1, (2,)]})
    assert canonical({"x": 1}) != canonical({"x": "1"})


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"observation": "short", "game": "LightsOut-v0"}, "short knows the boards of FrozenLake"),
        ({"seat": 1}, "seat needs `opponent: random`"),
        ({"bord": "changes"}, "did you mean 'board'"),
        ({"game": "Nim-v0", "games": ["Nim-v0"]}, "games names a game twice"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"game": "FrozenLak-v0"}, r"no game 'FrozenLak-v0' \(did you mean 'FrozenLake-v0'\?\)"),
        ({"settings": {"sise": 5}}, "settings: FrozenLake-v0 refuses these settings"),
        ({"game": "ThreePlayerTicTacToe-v0"}, "players: ThreePlayerTicTacToe-v0 cannot be played by 1 or 2"),
        ({"game": "UsedCar-v0-balanced"}, "TextArena cannot make UsedCar-v0-balanced here"),
    ],
)
def test_games_that_cannot_be_played_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        SPEC.tasks(TextarenaOptions(**options), "train")


def test_a_random_opponent_needs_moves():
    environment, tasks = world(game="Nim-v0", opponent="random", seat=1)
    with pytest.raises(RecipeError, match="does not say which moves are possible"):
        environment.reset(tasks[0], 0)


def test_the_page_has_the_options():
    page = (Path(__file__).parents[3] / "docs" / "environments" / "textarena.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| `(.*?)` \| (.*) \|$", page, re.MULTILINE)
    told = [(name, kind.replace("\\|", "|"), default, text.replace("\\|", "|")) for name, kind, default, text in rows]
    assert told == [(o.name, o.type, o.default, o.text) for o in options_of(TextarenaOptions)]
