"""TextWorld as an environment: both styles against the stock engine, expert, splits, files, snapshots, options."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import textworld
from textworld.generator.inform7 import generate_inform7_source

from verl_hier.environments.splits import split_of
from verl_hier.errors import RecipeError
from verl_hier.host.describe import options_of
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.textworld import SPEC
from verl_hier_plugins.environments.textworld.engine import World, plain
from verl_hier_plugins.environments.textworld.environment import TextworldEnvironment
from verl_hier_plugins.environments.textworld.making import cache_folder, compiled, fingerprint, generate
from verl_hier_plugins.environments.textworld.options import TextworldOptions
from verl_hier_plugins.environments.textworld.story import clean, events, is_game_command
from verl_hier_plugins.environments.textworld.texts import NOTHING_HAPPENS, describe

WORLD = {"seed": 3, "rooms": 3, "objects": 6, "quest": 4, "theme": "house", "goal_only": False}
TASK = {"instruction": "", "world": WORLD}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One folder of compiled games for all tests: compiling takes seconds."""
    return tmp_path_factory.mktemp("games")


def short(**options):
    return TextworldOptions(**{"observation": "short", "pool": 4, "validation": 2, **options})


def full(cache, **options):
    return TextworldOptions(**{"cache": str(cache), "pool": 4, "validation": 2, **options})


def stock(path, *wanted):
    """TextWorld's own environment for a game file."""
    names = ("admissible_commands", "won", "lost", "score", *wanted)
    return textworld.start(str(path), textworld.EnvInfos(**dict.fromkeys(names, True)))


@pytest.mark.slow
def test_the_short_style_conforms():
    check_environment(SPEC, short(nb_objects=6, quest_length=4), tasks=1)


def test_the_full_style_conforms(cache):
    check_environment(SPEC, full(cache), tasks=1, isolated=False)


# ---- the same game as TextWorld's ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Game .* is not fully supported")
@pytest.mark.parametrize("seed", range(3))
def test_full_texts_and_logic_are_those_of_the_compiled_game(cache, seed):
    """Random walks on both engines: words, admissible commands, score and end."""
    ours = TextworldEnvironment(full(cache, max_steps=60))
    file = compiled(generate(WORLD), cache)
    generate(WORLD).save(str(file.with_suffix(".json")))
    theirs, rng = stock(file), random.Random(seed)
    step, state = ours.reset(TASK, 0), theirs.reset()
    assert clean(state.feedback).endswith(step.text) and "TextWorld" in step.text
    others = ["n", "s", "e", "w", "x me", "take it", "get key", "l", "i", "jump", "open door", "xyzzy"]
    for number in range(40):
        assert list(step.admissible) == state.admissible_commands
        action = rng.choice(others if number % 4 == 0 else step.admissible)
        step = ours.step(action)
        if not step.valid:
            # TextWorld's game counts a turn for it; ours forgets that it was asked. Nothing else may differ.
            before = state.admissible_commands
            state, _, _ = theirs.step(action)
            assert state.admissible_commands == before
        else:
            state, _, _ = theirs.step(action)
        assert step.text == clean(state.feedback)
        assert (step.info["won"], step.info["points"], step.done) == (state.won, state.score, state.done)
        if step.done:
            return


@pytest.mark.parametrize("seed", range(12))
def test_the_logic_is_that_of_the_state_engine(seed, tmp_path):
    """Many games, without a compiler: commands, score and end as TextWorld's own engine for `.json` files."""
    world = {**WORLD, "seed": seed, "rooms": 1 + seed % 4, "quest": 2 + seed % 3}
    game = generate(world)
    file = tmp_path / "game.json"
    game.save(str(file))
    theirs, ours, rng = stock(file), TextworldEnvironment(short(max_steps=60)), random.Random(seed)
    step, state = ours.reset({"world": world}, 0), theirs.reset()
    for number in range(40):
        assert list(step.admissible) == [plain(command) for command in state.admissible_commands]
        commands = game.walkthrough if seed % 2 else state.admissible_commands
        command = commands[number] if seed % 2 and number < len(commands) else rng.choice(state.admissible_commands)
        step = ours.step(command)
        state, _, _ = theirs.step(command)
        # TextWorld's engine also ends a game whose quest can no longer be done; the compiled game goes on.
        assert (step.info["won"], step.info["points"]) == (state.won, state.score)
        if step.done or state.done:
            break
    assert step.info["won"] or not seed % 2


def test_the_world_does_not_depend_on_hashes():
    """Admissible commands, anchors and the source of the compiled game in a process with other hashes."""
    code = (
        "import json, sys; from textworld.generator.inform7 import generate_inform7_source as source;"
        "from verl_hier_plugins.environments.textworld.making import generate, fingerprint;"
        "from verl_hier_plugins.environments.textworld.engine import World;"
        "game = generate(json.loads(sys.argv[1])); node = World(game).start;"
        "print(json.dumps([fingerprint(game), node.anchor, list(node.actions), source(game)]))"
    )
    command, other = [sys.executable, "-c", code, json.dumps(WORLD)], {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=other)
    game = generate(WORLD)
    node = World(game).start
    here = [fingerprint(game), node.anchor, list(node.actions), generate_inform7_source(game)]
    assert json.loads(done.stdout) == here


def test_games_of_one_knowledge_base_are_those_of_their_own():
    from textworld import GameOptions
    from textworld.generator import make_game

    options = GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = 3, 3, 6, 4
    alone, shared = make_game(options), generate(WORLD)
    assert fingerprint(alone) == fingerprint(shared) and alone.objective == shared.objective


# ---- states ----------------------------------------------------------------------------------------------------------


def test_equal_states_meet_and_are_one_object():
    one, two = TextworldEnvironment(short()), TextworldEnvironment(short())
    task = SPEC.tasks(short(), "train")[0]
    first = one.reset(task, 0)
    assert two.reset(task, 0).anchor == first.anchor and two.node is one.node
    way = next(command for command in first.admissible if command.startswith("go "))
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[way.split()[1]]
    assert one.step(way).anchor != first.anchor
    assert one.step(f"go {back}").anchor == first.anchor and one.node is two.node
    assert one.step("look").anchor == first.anchor and len(one.path) == 3


def test_a_quest_is_done_once():
    world = World(generate(WORLD))
    node = world.start
    for command in world.game.walkthrough:
        node = node.walk(command)
    assert node.won and not node.lost and node.points == 1 == world.most_points
    for command in node.actions:
        assert node.walk(command).points == 1, "what was completed stays so"


def test_forks_of_the_machine_are_independent(cache):
    environment, rng = TextworldEnvironment(full(cache)), random.Random(0)
    step = environment.reset(TASK, 0)
    for _ in range(3):
        step = environment.step(rng.choice(step.admissible))
    forks = [environment.fork() for _ in range(3)]
    for fork in forks:
        for _ in range(6):
            fork.step(rng.choice(fork.node.actions and list(fork.node.actions)))
    assert environment.node.anchor == step.anchor
    fork = environment.fork()
    assert [fork.step(a) for a in ("look", "inventory")] == [environment.step(a) for a in ("look", "inventory")]


def test_the_machine_never_hears_what_is_not_for_the_world(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = TextworldEnvironment(full(cache, invalid_penalty=0.05, max_steps=100))
    first = environment.reset(TASK, 0)
    for action in ("save", "QUIT", "restart", "tw-trace-actions", "look. quit", "look then quit", "", "  ", "é" * 150):
        step = environment.step(action)
        assert (step.valid, step.reward, step.text) == (False, -0.05, NOTHING_HAPPENS), action
        assert step.anchor == first.anchor
    assert environment.step("Look").valid and environment.step(" x \n rack").text
    assert not list(tmp_path.iterdir()), "nothing was saved"


def test_what_the_machine_says_is_cleaned():
    said = "\n[opening the box]\nYou open the box.\n[opening the box - succeeded]\n\n>   -= Attic =-0/25"
    assert clean(said) == "You open the box."
    assert events(said) == ("opening the box",)
    assert events("[the (first) rule - succeeded]\n[going east - failed the x rule]") == ()
    assert is_game_command("take type-B key's lid") and not is_game_command("take key, go north")


# ---- short texts -----------------------------------------------------------------------------------------------------


def test_short_texts_say_what_changed():
    seen = set()
    for seed in range(12):
        environment = TextworldEnvironment(short(max_steps=80))
        step = environment.reset({"world": {**WORLD, "seed": seed}}, 0)
        rng = random.Random(seed)
        assert re.fullmatch(r"[a-z0-9 ]+ : .*exits (none|(north|east|south|west| )+)", step.text)
        while not (step.done or step.truncated):
            action = rng.choice(step.admissible)
            step = environment.step(action)
            verb, _, rest = action.partition(" ")
            seen.add(verb)
            if verb == "open":
                assert step.text.startswith(f"{rest} open")
            elif verb == "close":
                assert step.text == f"{rest} closed"
            elif verb == "unlock":
                assert step.text == f"{rest.partition(' with ')[0]} closed"
            elif verb == "take":
                thing = rest.partition(" from ")[0]
                assert step.text.startswith("carry : ") and thing in step.text[8:].split(" ; ")
            elif verb in ("drop", "eat", "put", "insert"):
                thing = re.split(" on | into ", rest)[0]
                assert thing not in step.text.removeprefix("carry : ").split(" ; ")
            elif verb in ("go", "look"):
                assert " : " in step.text and "exits" in step.text
    assert {"open", "close", "take", "go", "look", "inventory", "examine", "drop"} <= seen


def test_short_rooms_list_each_way_out_that_can_be_gone():
    for seed in range(8):
        world = World(generate({**WORLD, "seed": seed, "rooms": 5}))
        ways = re.search(r"exits (.*)$", describe(world.start)).group(1).split()
        gone = [command.removeprefix("go ") for command in world.start.actions if command.startswith("go ")]
        assert sorted(ways) == (sorted(gone) or ["none"])


def test_commands_in_plain_words():
    assert plain("Take the dish-pit TYPE B key22") == "take the dish pit type b key 22"
    environment = TextworldEnvironment(short(theme="basic"))
    step = environment.reset({"world": {**WORLD, "theme": "basic"}}, 0)
    command = next(c for c in step.admissible if re.search(r"\d", c))
    tight = re.sub(r" (\d)", r"\1", command)
    assert environment.fork().step(tight) == environment.step(command.upper())


def test_admissible_commands_can_be_shown():
    step = TextworldEnvironment(short(show_admissible=True)).reset(TASK, 0)
    assert step.text.splitlines()[1] == f"You can: {'; '.join(step.admissible)}"


# ---- the expert, the tasks, the options ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_expert_wins_and_recovers(noise):
    options = short(pool=10, world_size=4, nb_objects=8, quest_length=4, max_steps=60)
    environment = TextworldEnvironment(options)
    for number, task in enumerate(SPEC.tasks(options, "train")):
        rng, step = random.Random(number), environment.reset(task, 0)
        expert = environment.expert(rng)
        assert expert.subgoals and not any(subgoal.startswith("go ") for subgoal in expert.subgoals)
        for subgoal in range(len(expert.subgoals)):
            while not step.done and (action := expert.advise(subgoal)) is not None:
                assert action in step.admissible
                mistake = expert.mistake(subgoal, rng)
                if rng.random() < noise:
                    action = mistake or rng.choice([c for c in step.admissible if not c.startswith("eat ")])
                step = environment.step(action)
                assert step.valid is (action != mistake)
        assert step.info["won"] and step.reward == 1.0


def test_the_expert_follows_the_compiled_game(cache):
    environment = TextworldEnvironment(full(cache))
    step = environment.reset(TASK, 0)
    expert = environment.expert(random.Random(0))
    for subgoal in range(len(expert.subgoals)):
        while not step.done and (action := expert.advise(subgoal)) is not None:
            step = environment.step(action)
    assert step.done and step.info["won"] and "*** The End ***" in step.text and step.admissible == ()
    after = environment.step("look")
    assert after.done and not after.valid and after.reward == -0.02


@pytest.mark.slow
def test_splits_are_disjoint_by_content():
    options = short(pool=12, validation=5, world_size=2, nb_objects=4, quest_length=2)
    found = {split: SPEC.tasks(options, split) for split in ("train", "val", "test")}
    prints = {split: [fingerprint(generate(t["world"])) for t in tasks] for split, tasks in found.items()}
    assert [len(set(p)) for p in prints.values()] == [12, 5, 5]
    assert all(split_of(p) == split for split, those in prints.items() for p in those)
    assert all(len(json.dumps(task)) < 500 for task in found["train"])
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_instructions():
    tells = {
        (style, goal): SPEC.tasks(short(observation=style, instruction=goal, nb_objects=6), "train")[0]
        for style in ("full", "short")
        for goal in ("steps", "goal")
    }
    assert len({json.dumps({**t["world"], "goal_only": 0}) for t in tells.values()}) == 1, "the worlds are the same"
    steps, goal = (tells["short", name]["instruction"].split(" ; ") for name in ("steps", "goal"))
    assert len(steps) >= 3 and goal == steps[-1:]
    assert len(tells["full", "steps"]["instruction"]) > len(tells["full", "goal"]["instruction"])


@pytest.mark.slow
def test_games_of_a_folder(cache, tmp_path):
    for seed in range(4):
        folder = tmp_path / ("train" if seed < 2 else "valid")
        folder.mkdir(exist_ok=True)
        generate({**WORLD, "seed": seed}).save(str(folder / f"game{seed}.json"))
    options = short(data_path=str(tmp_path), pool=0, validation=0)
    tasks = SPEC.tasks(options, "train")
    assert [task["game"] for task in tasks] == ["train/game0.json", "train/game1.json"]
    assert [task["game"] for task in SPEC.tasks(options, "val")] == ["valid/game2.json", "valid/game3.json"]
    with pytest.raises(RecipeError, match="no game for the split 'test'"):
        SPEC.tasks(options, "test")
    generated, read = TextworldEnvironment(short()), TextworldEnvironment(options)
    assert generated.reset({"world": {**WORLD, "seed": 0}}, 0) == read.reset(tasks[0], 0)
    assert tasks[0]["instruction"].count(" ; ") >= 3
    check_environment(SPEC, options, tasks=1, isolated=False)


def test_a_compiled_file_is_played_as_it_is(cache, tmp_path):
    file = tmp_path / "test" / "mine.z8"
    file.parent.mkdir()
    file.write_bytes(compiled(generate(WORLD), cache).read_bytes())
    with pytest.raises(RecipeError, match=r"has no mine\.json beside it"):
        SPEC.tasks(full(cache, data_path=str(tmp_path)), "test")
    generate(WORLD).save(str(file.with_suffix(".json")))
    empty = tmp_path / "cache"
    options = full(empty, data_path=str(tmp_path))
    (task,) = SPEC.tasks(options, "test")
    assert task["game"] == "test/mine.z8" and task["instruction"] == generate(WORLD).objective
    assert TextworldEnvironment(options).reset(task, 0).text == TextworldEnvironment(full(cache)).reset(TASK, 0).text
    assert not empty.exists(), "nothing had to be compiled"


def test_files_that_are_no_games(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.json").write_text('{"a": 1}')
    with pytest.raises(RecipeError, match="is no game of TextWorld"):
        SPEC.tasks(short(data_path=str(tmp_path)), "train")
    (tmp_path / "train" / "x.json").unlink()
    (tmp_path / "train" / "x.ulx").touch()
    with pytest.raises(RecipeError, match="which TextWorld no longer plays"):
        SPEC.tasks(short(data_path=str(tmp_path)), "train")
    with pytest.raises(RecipeError, match="is no folder"):
        SPEC.tasks(short(data_path=str(tmp_path / "nowhere")), "train")


def test_a_game_is_compiled_once(cache, monkeypatch):
    file = compiled(generate(WORLD), cache)
    before = file.stat().st_mtime_ns
    assert compiled(generate(WORLD), cache) == file and file.stat().st_mtime_ns == before
    assert [path.suffix for path in cache.iterdir() if path.is_dir()] == [], "no workshop is left"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder("") == Path("/somewhere/verl-hier/textworld") and cache_folder("/here") == Path("/here")


def test_a_compiler_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("INFORM_HOME", str(tmp_path / "missing"))
    with pytest.raises(RecipeError, match=r"needs TextWorld's Inform 7 compiler, which failed.*take `short`"):
        compiled(generate(WORLD), tmp_path / "cache")


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"pool": 0}, "pool must be at least 1"),
        ({"observation": "long"}, "is not one of"),
        ({"worldsize": 3}, "did you mean 'world_size'"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


def test_the_page_has_the_options():
    page = (Path(__file__).parents[3] / "docs" / "environments" / "textworld.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| `(.*?)` \| (.*) \|$", page, re.MULTILINE)
    told = [(name, kind.replace("\\|", "|"), default, text.replace("\\|", "|")) for name, kind, default, text in rows]
    assert told == [(o.name, o.type, o.default, o.text) for o in options_of(TextworldOptions)]
