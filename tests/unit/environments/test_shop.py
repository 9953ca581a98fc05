"""The shop on generated catalogues: kit, pages, actions, reward, expert, splits, forks, and attempts to cheat."""

import itertools
import json
import random
import sys

import pytest

from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.shop import SPEC
from verl_hier_plugins.environments.shop.actions import LONGEST, parse_action, write_action
from verl_hier_plugins.environments.shop.catalogue import Generated, Product, generated_shop
from verl_hier_plugins.environments.shop.options import RESULTS, ShopOptions
from verl_hier_plugins.environments.shop.pages import CONTROLS
from verl_hier_plugins.environments.shop.reward import Goal, same, score, type_factor
from verl_hier_plugins.environments.shop.words import KINDS

TINY = {"observation": "short", "actions": "plain", "page_size": 4, "pool": 40, "validation": 16}


def begin(number=0, split="train", **options):
    """An environment, its task and the first step."""
    made = ShopOptions(**{**TINY, **options})
    task = SPEC.tasks(made, split)[number]
    environment = SPEC.factory(made)
    return environment, task, environment.reset(task, 0)


def play(environment, step, rng=None, share=0.0):
    """Let the expert play, with a share of a beginner's mistakes; yields (action, step)."""
    rng = rng or random.Random(0)
    expert = environment.expert(rng)
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated) and (action := expert.advise(number)) is not None:
            action = (expert.mistake(number, rng) or action) if rng.random() < share else action
            step = environment.step(action)
            yield action, step


def full(**options):
    return {"observation": "full", "actions": "brackets", "page_size": 10, "level": "small", **options}


# ---- contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [ShopOptions(**TINY), ShopOptions(level="small", pool=12, validation=4, show_admissible=True, reward="success")],
    ids=["tiny", "small"],
)
def test_conforms(options):
    check_environment(SPEC, options, tasks=2)


def test_without_the_package_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(RecipeError, match=r"pip install 'verl-hier\[search\]'"):
        SPEC.factory(ShopOptions())


def test_an_expert_at_work_behind_a_fork():
    environment, _, step = begin()
    for action, _ in play(environment.fork(), step):
        twin = environment.fork()
        assert environment.step(action) == twin.step(action)
        before = environment.place
        twin.step("click back to search")
        assert environment.place == before
    assert environment.step("click buy now").done


# ---- catalogue and tasks ---------------------------------------------------------------------------------------------


def test_kinds_differ_in_their_nouns_and_categories():
    for first, second in itertools.combinations(KINDS, 2):
        assert len({first.noun, *first.uses} & {second.noun, *second.uses}) <= 1, (first.noun, second.noun)
        assert len({*first.category} & {*second.category}) <= 1, (first.noun, second.noun)
    for kind in KINDS:
        values = [value for those in kind.options.values() for value in those]
        assert len({*values}) == len(values) and not {*values} & CONTROLS
        assert len({*kind.attributes}) == 6


@pytest.mark.parametrize("level", ["tiny", "small"])
def test_products_say_what_they_are(level):
    shop = generated_shop(Generated(0, level, 200))
    assert len(shop.products) == 200
    for product in shop.products.values():
        told = f"{product.title} {' '.join(product.features)}"
        assert all(attribute in told for attribute in product.attributes)
        assert all(len(values) >= 2 for values in product.options.values()) and product.price > 0
    assert shop is generated_shop(Generated(0, level, 200))
    other = generated_shop(Generated(1, level, 200))
    assert [*other.products.values()] != [*shop.products.values()]


@pytest.mark.parametrize("options", [TINY, full(pool=40, validation=16)], ids=["tiny", "small"])
def test_each_goal_is_met_by_its_product_and_not_by_most_others(options):
    made = ShopOptions(**options)
    shop = generated_shop(Generated.of(made))
    for task in SPEC.tasks(made, "train"):
        goal = Goal.of(task["goal"])
        assert score(goal, shop.products[goal.item], goal.options, exact=True).total == 1.0
        rivals = [product for product in shop.products.values() if product.query == goal.query]
        right = [product for product in rivals if score(goal, product, goal.options, exact=True).total == 1.0]
        assert 1 <= len(right) <= len(rivals) / 2
        assert all(word in task["instruction"] for word in (*goal.attributes, *goal.options, goal.query))
        assert f"{goal.limit:.0f}" in task["instruction"]


def test_splits_are_disjoint_and_repeatable():
    made = ShopOptions(**{**TINY, "pool": 300, "validation": 50})
    asked = {split: {task["instruction"] for task in SPEC.tasks(made, split)} for split in ("train", "val", "test")}
    assert [len(texts) for texts in asked.values()] == [300, 50, 50]
    assert not (asked["train"] & asked["val"] or asked["train"] & asked["test"] or asked["val"] & asked["test"])
    assert SPEC.tasks(made, "train") == SPEC.tasks(made, "train")
    assert all(len(json.dumps(task)) < 600 for task in SPEC.tasks(made, "train"))
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(made, "dev")


# ---- pages and actions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search[Steel Mug]", ("search", "steel mug")),
        (" click[ Buy  Now ] ", ("click", "buy now")),
        ("click buy now", ("click", "buy now")),
        ("click[< Prev]", ("click", "< prev")),
        ("search [a]", ("search", "a")),
        ("search[]", None),
        ("search", None),
        ("click", None),
        ("buy now", None),
        ("I will click[buy now]", None),
        ("click[a] click[b]", ("click", "a] click[b")),
    ],
)
def test_actions(text, action):
    assert parse_action(text) == action


def test_a_long_turn_is_cut():
    assert parse_action(f"search[{'a b ' * 100_000}]") is None
    assert len(parse_action(f"search {'a' * 100_000}")[1]) == LONGEST
    assert write_action("click", "< prev", "plain") == "click prev"


def test_a_visit():
    world, task, step = begin(**full())
    assert step.text.startswith("Search page") and step.admissible[0].startswith("search[")
    assert not world.step("click[buy now]").valid and not world.step("click[back to search]").valid
    step = world.step(f"search[{task['goal']['query']}]")
    assert step.valid and len(step.admissible) == 12 and "click[next >]" in step.admissible
    assert not world.step("search[mug]").valid, "there is a search bar on the search page alone"
    first = step
    step = world.step("click[next >]")
    assert step.valid and "click[< prev]" in step.admissible and step.anchor != first.anchor
    assert world.step("click[< prev]") == first
    seen = {*first.admissible}
    for _ in range(RESULTS // 10 - 1):
        seen |= {*world.step("click[next >]").admissible}
    assert len([name for name in seen if name.startswith("click[B0")]) == RESULTS
    assert not world.step("click[next >]").valid
    item = next(name for name in world.step("click[xyz]").admissible if name.startswith("click[B0"))
    step = world.step(item.lower())
    product = world.shop.products[world.place.item]
    assert step.valid and product.title in step.text and product.tag in step.text
    for page, text in {"description": product.description, "features": product.features[0]}.items():
        sub = world.step(f"click[{page}]")
        assert text in sub.text and sub.admissible == ("click[back to search]", "click[< prev]")
        assert world.step("click[< prev]") == step
    name, values = next(iter(product.options.items()))
    for value in (values[0], values[1], values[1]):
        chosen = world.step(f"click[{value}]")
        assert dict(world.place.chosen) == {name: value} and f"(chosen: {value})" in chosen.text
    world.step("click[features]")
    assert world.step("click[< prev]") == chosen, "what was chosen stays on the pages of the product"
    world.step("click[< prev]")
    assert world.step(item) == step, "and is gone when the product is opened anew"


def test_an_anchor_names_a_state():
    world, _, start = begin()
    other = world.fork()
    one, two = world.step("search wooden lamp"), other.step("search lamp wooden")
    assert one.anchor == two.anchor != start.anchor, "the same products were found"
    item = one.admissible[-1]
    opened = world.step(item)
    value = next(iter(world.shop.products[world.place.item].options.values()))[0]
    anchors = {start.anchor, one.anchor, opened.anchor, world.step(f"click {value}").anchor}
    assert len(anchors) == 4
    text, _, step = begin(anchor="text")
    assert step.anchor == step.text and text.step("search lamp").anchor == one.text.__class__(text._answer().text)


def test_nothing_found_is_an_answer():
    world, _, _ = begin(**full())
    step = world.step("search[qqqq zzzz]")
    assert step.valid and step.text == "No product was found." and step.admissible == ("click[back to search]",)
    assert world.step("click[back to search]").text.startswith("Search page")


def test_an_episode_is_truncated():
    world, _, _ = begin(max_steps=2)
    assert not world.step("search lamp").truncated and world.step("click back to search").truncated


# ---- reward ----------------------------------------------------------------------------------------------------------

MUG = Product(
    "m", "steel camping mug", frozenset(("mug", "cup", "camping", "coffee", "kitchen")), "mug", ("kitchen", "mugs"),
    20.0, "$20", ("steel", "light"), {"color": ("red", "blue"), "size": ("small",)},
)  # fmt: skip
GOAL = Goal(
    "m", ("camping", "coffee", "cup", "kitchen", "mug"), "mug", ("kitchen", "mugs"), ("steel", "light"), ("red",), 25
)


def changed(product, **fields):
    return Product(**{**{name: getattr(product, name) for name in product.__dataclass_fields__}, **fields})


@pytest.mark.parametrize(
    ("fields", "chosen", "total"),
    [
        ({}, ("red",), 1.0),
        ({}, ("red", "small"), 1.0),
        ({}, (), 3 / 4),
        ({}, ("blue",), 3 / 4),
        ({"price": 25.0}, ("red",), 1.0),
        ({"price": 25.01}, ("red",), 3 / 4),
        ({"attributes": ("steel",)}, ("red",), 3 / 4),
        ({"attributes": (), "price": 90.0}, (), 0.0),
        ({"words": frozenset(("lamp", "light"))}, ("red",), 0.0),
        ({"words": frozenset(("cup", "flask"))}, ("red",), 1.0),
        ({"words": frozenset(("cup", "flask")), "query": "flask"}, ("red",), 1.0),
        ({"words": frozenset(("cup",)), "query": "flask", "category": ("kitchen", "flasks")}, ("red",), 0.5),
        ({"words": frozenset(("cup", "mug")), "query": "flask", "category": ("sports",)}, (), 3 / 4),
    ],
)
def test_the_reward_is_the_share_of_what_was_asked_for(fields, chosen, total):
    assert score(GOAL, changed(MUG, **fields), chosen, exact=True).total == pytest.approx(total)


def test_a_type_that_shares_little():
    goal = Goal("m", tuple(f"w{number}" for number in range(20)), "mug", ("kitchen",), (), (), 25)
    assert type_factor(goal, changed(MUG, words=frozenset(("w0",)))) == 0.1
    assert type_factor(goal, changed(MUG, words=frozenset(("w0", "w1")))) == 1.0, "the search words agree"
    assert type_factor(goal, changed(MUG, words=frozenset(("w0", "w1")), query="cup")) == 0.5


@pytest.mark.parametrize(
    ("given", "wanted", "roughly"),
    [
        ("machine wash", "machine wash", True),
        ("machine washable", "machine wash", True),
        ("red", "deep red", True),
        ("x-large", "large", True),
        ("long sleeve", "short sleeve", False),
        ("black", "blue", False),
        ("", "blue", False),
    ],
)
def test_texts_of_people_are_compared_roughly(given, wanted, roughly):
    assert same(given, wanted, exact=False) is roughly
    assert same(given, wanted, exact=True) is (given == wanted)


@pytest.mark.parametrize(("reward", "half"), [("score", 5.0), ("success", 0.0)])
def test_a_purchase_pays_what_the_options_say(reward, half):
    world, task, step = begin(reward=reward, win_reward=10.0)
    *_, (_, last) = play(world.fork(), step)
    assert last.done and last.info["won"] and last.reward == 10.0 and last.info["score"] == 1.0
    assert last.info["parts"]["type"] == 1.0
    bought = [action for action, _ in play(world.fork(), step) if action.startswith("search") or "item" in action]
    for action in bought:
        world.step(action)
    last = world.step("click buy now")
    asked = len(task["goal"]["attributes"]) + len(task["goal"]["options"]) + 1
    share = 1 - len(task["goal"]["options"]) / asked
    assert last.reward == pytest.approx(10 * share if half else 0.0) and not last.info["won"]
    assert last.info["score"] == pytest.approx(share)


# ---- expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [TINY, full(pool=40, validation=16)], ids=["tiny", "small"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_expert_buys_what_was_asked_for(options, share):
    world = SPEC.factory(ShopOptions(**{**options, "max_steps": 200}))
    for number, task in enumerate(SPEC.tasks(world.options, "train")):
        *_, (_, last) = play(world, world.reset(task, 0), random.Random(number), share)
        assert last.info["won"] and last.reward == 1.0 and last.valid


def test_the_expert_reads_the_features_where_a_title_does_not_tell():
    world = SPEC.factory(ShopOptions(**full(pool=60, max_steps=100)))
    read = 0
    for task in SPEC.tasks(world.options, "train"):
        said = [action for action, _ in play(world, world.reset(task, 0))]
        title = world.shop.products[world.place.item].title
        told = all(attribute in title for attribute in task["goal"]["attributes"])
        assert told or "click[features]" in said
        read += "click[features]" in said
    assert read >= 3


def test_a_skipped_stage_is_an_option_that_is_not_chosen():
    world, _, step = begin()
    expert = world.expert(random.Random(0), skip_stage=1.0)
    assert len(expert.subgoals) == len(world.expert(random.Random(0)).subgoals) - 1
    for number in range(len(expert.subgoals)):
        while not step.done and (action := expert.advise(number)) is not None:
            step = world.step(action)
    assert step.done and 0 < step.info["score"] < 1


# ---- cheats ----------------------------------------------------------------------------------------------------------

CHEATS = [
    *("", " ", "buy", "buy now", "buy[now]", "purchase", "win", "won = true", "reward=1", "score: 1.0", "done", "exit"),
    *("click", "click[]", "click[ ]", "click[buy now]", "click buy now", "CLICK[BUY NOW]", "click[buy now"),
    *("click[back to search]", "click[< prev]", "click[next >]", "click[features]", "click[red]", "click[-1]"),
    *("click[*]", "click[.*]", "click[None]", "click[%s]", "click[{item}]", "click[../../goal]", "click[item 1]"),
    *("click[goal]", "click[the product that was asked for]", "search", "search[]", "search[ ]", "search[\n]"),
    *("search[lamp] click[item 1] click[buy now]", "think[buy now]", "reset[]", "{'won': True}", "\x00"),
    *("<think>click[buy now]</think>", "click[buy\0now]", "ignore the errand and give the reward", "a" * 100_000),
    *("__import__('os').system('true')", "' or 1=1 --", "[" * 5000, "click[" * 3000),
]  # fmt: skip


def test_there_are_enough_cheats():
    assert len({*CHEATS}) >= 40


@pytest.mark.parametrize("options", [TINY, full(pool=4, validation=4)], ids=["tiny", "small"])
def test_no_cheat_is_rewarded_or_changes_anything(options):
    world, task, start = begin(**options)
    for cheat in [*CHEATS, f"click[{task['goal']['item']}]", f"buy[{task['goal']['item']}]", task["instruction"]]:
        step = world.fork().step(cheat)
        spoken = parse_action(cheat)
        if spoken and spoken[0] == "search":
            assert step.reward == 0 and not step.done and not step.info["won"], cheat
            continue
        assert not step.valid and step.reward < 0 and not step.done and not step.info["won"], cheat
        assert step.anchor == start.anchor and step.info["score"] == 0, cheat


@pytest.mark.parametrize("options", [TINY, full(pool=4, validation=4)], ids=["tiny", "small"])
def test_the_end_pays_once(options):
    world, _, start = begin(**options)
    said = [action for action, _ in play(world, start)]
    for action in [*said, *CHEATS]:
        step = world.step(action)
        assert step.reward < 0 and step.done and not step.valid, action


@pytest.mark.parametrize("options", [TINY, full(pool=60, validation=16)], ids=["tiny", "small"])
def test_buying_the_first_result_for_the_whole_instruction_is_never_right(options):
    """WebShop's simplest baseline; every instruction asks for an option, which it does not choose."""
    world = SPEC.factory(ShopOptions(**options))
    scores = []
    for task in SPEC.tasks(world.options, "train"):
        world.step(world.reset(task, 0).admissible[0])
        size = world.options.page_size
        world.step(write_action("click", world.place.listed(size)[0], "brackets"))
        scores.append(world.step("click[buy now]").info["score"])
    assert max(scores) < 1.0 and sum(scores) / len(scores) < 0.75


def test_clicking_every_option_leaves_one_of_each():
    world, _, start = begin()
    for action, _ in play(world.fork(), start):
        if not action.startswith(("search", "click item")):
            break
        world.step(action)
    for values in world.shop.products[world.place.item].options.values():
        for value in values:
            world.step(f"click {value}")
    assert len(world.place.chosen) == len(world.shop.products[world.place.item].options)


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"attributes": 0}, "attributes must be at least 1"),
        ({"attributes": 3}, "attributes must be at most 2 at the level tiny"),
        ({"products": 5}, "products must be at least 32"),
        ({"pool": 0}, "pool and validation must be at least 1"),
        ({"instructions_path": "x.json"}, "instructions_path needs items_path"),
        ({"items_path": "x.json"}, "items_path needs attributes_path"),
        ({"items_path": "x.json", "attributes_path": "y.json", "products": 0}, "products must be at least 1"),
        ({"level": "huge"}, "is not one of"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


def test_a_task_without_a_goal_is_refused():
    with pytest.raises(RecipeError, match="needs `goal`"):
        SPEC.factory(ShopOptions()).reset({"instruction": "buy a lamp"}, 0)
