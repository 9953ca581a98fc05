"""The search environment on generated worlds: facts, questions, searches, answers, anchors, the expert."""

import itertools
import json
import math
import random
import sys
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.environments.scoring import exact_match, f1, normalise
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.search import SPEC
from verl_hier_plugins.environments.search.actions import LONGEST, Action, describe, parse_action, write_action
from verl_hier_plugins.environments.search.bm25 import split_words
from verl_hier_plugins.environments.search.corpus import corpus_of
from verl_hier_plugins.environments.search.index import Collection, _index, library
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import follow
from verl_hier_plugins.environments.search.world import RELATIONS, build_world, write_document


def begin(number=0, split="train", **options):
    """An environment, its task and the first step."""
    made = SearchOptions(**{"pool": 40, "validation": 20, **options})
    task = SPEC.tasks(made, split)[number]
    environment = SPEC.factory(made)
    return environment, task, environment.reset(task, 0)


def play(environment, first, rng=None, share=0.0, remember=True):
    """Let the expert play, with a share of a beginner's mistakes; yields (action, step)."""
    rng = rng or random.Random(0)
    expert, step = environment.expert(rng, remember=remember), first
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated) and (action := expert.advise(number)) is not None:
            action = expert.mistake(number, rng) if rng.random() < share else action
            step = environment.step(action)
            yield action, step


# ---- contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(hops=(1, 3), pool=10),
        SearchOptions(level="small", actions="tags", reward="f1", observation="short"),
    ],
    ids=["plain", "tags"],
)
def test_conforms(options):
    check_environment(SPEC, options, tasks=1)


@pytest.mark.slow
def test_conforms_under_strange_actions():
    actions = ["search mayor", "<web_search>river</web_search>", "web", "", "<think>search x", "answer the river"]
    check_environment(SPEC, SearchOptions(), tasks=3, actions=actions, isolated=False)


def test_without_the_package_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(RecipeError, match=r"pip install 'verl-hier\[search\]'"):
        SPEC.factory(SearchOptions())


# ---- world and questions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "entities"), [(0, 24), (1, 120), (5, 1000)])
def test_facts_agree_with_each_other(seed, entities):
    world = build_world(seed, entities)
    assert len(world.kinds) == entities and len({name[:5] for name in world.kinds}) == entities
    lost = [n for n, kind in world.kinds.items() if set(world.facts[n]) != set(RELATIONS[kind])]
    assert [set(RELATIONS["person"]) - set(world.facts[name]) for name in lost] == [{"mentor"}]
    for name, kind in world.kinds.items():
        fact = world.facts[name]
        assert all(world.kinds[value] == RELATIONS[kind][relation] for relation, value in fact.items())
        if kind == "town":
            assert world.facts[fact["mayor"]]["hometown"] == name
        if kind == "company":
            assert fact["seat"] == world.facts[fact["founder"]]["hometown"]
        if kind == "river":
            assert world.facts[fact["port"]]["river"] == name
        if kind == "region":
            assert world.facts[fact["capital"]]["region"] == name
            assert world.facts[world.facts[fact["governor"]]["hometown"]]["region"] == name


@pytest.mark.parametrize("prose", [False, True])
def test_documents_tell_every_fact_of_their_entity_and_no_other(prose):
    world = build_world(0, 120)
    for name, facts in world.facts.items():
        text = write_document(world, name, prose)
        named = {word.strip(".,") for word in text.split()}
        assert named & set(world.kinds) == {name, *facts.values()}
        assert set(facts) <= named and world.kinds[name] in named
        assert text.count(".") == (len(facts) if prose else 1) and text == text.lower()


@pytest.mark.parametrize("hops", [1, 2, 4])
def test_a_question_of_k_hops_needs_k_documents(hops):
    options = SearchOptions(hops=hops, pool=60)
    world = build_world(0, options.size)
    for task in SPEC.tasks(options, "train"):
        chain = follow(world, task["support"][0], tuple(task["relations"]))
        assert list(chain.entities) == [*task["support"], *task["answers"]]
        assert len(set(chain.entities)) == hops + 1 == task["hops"] + 1
        for here, there in itertools.pairwise(chain.entities):
            assert there in write_document(world, here, options.prose)
        named = [word.strip("?") for word in task["question"].split()]
        assert set(named) & set(world.kinds) == {chain.entities[0]}
        asked = " of the ".join(reversed(task["relations"]))
        assert task["question"].endswith(f" is the {asked} of {chain.entities[0]}?")


def test_splits_are_disjoint_and_repeatable():
    options = SearchOptions(hops=(1, 2, 3), pool=450, validation=60)
    made = {split: SPEC.tasks(options, split) for split in ("train", "val", "test")}
    asked = {split: {task["question"] for task in tasks} for split, tasks in made.items()}
    assert [len(questions) for questions in asked.values()] == [450, 60, 60]
    assert not asked["train"] & asked["val"]
    starts = {split: {task["support"][0] for task in tasks} for split, tasks in made.items()}
    assert not starts["test"] & (starts["train"] | starts["val"])
    assert made["train"] == SPEC.tasks(options, "train")
    assert Counter(task["hops"] for task in made["train"]) == {1: 150, 2: 150, 3: 150}
    other = SPEC.tasks(SearchOptions(hops=2, seed=1), "train")
    assert not {task["question"] for task in other} & asked["train"]
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_tasks_carry_no_documents():
    tasks = SPEC.tasks(SearchOptions(level="small", hops=4), "train")
    assert max(len(json.dumps(task)) for task in tasks) < 700
    assert len({json.dumps(task["corpus"]) for task in tasks}) == 1


def test_a_task_brings_its_own_corpus():
    _, task, _ = begin()
    elsewhere = SPEC.factory(SearchOptions(seed=3, level="small"))
    first = elsewhere.reset(task, 0)
    *_, (_, last) = play(elsewhere, first)
    assert last.info["won"]


def test_a_world_with_too_few_questions_says_so():
    with pytest.raises(
        RecipeError, match=r"hier\.environment\.pool: a world of 24 entities has no more than \d+ questi"
    ):
        SPEC.tasks(SearchOptions(entities=24, hops=1, pool=100), "train")
    with pytest.raises(RecipeError, match=r"hier\.environment\.validation: .* in the split 'test'"):
        SPEC.tasks(SearchOptions(entities=24, hops=1, pool=10, validation=90), "test")


# ---- search ----------------------------------------------------------------------------------------------------------

WORD = st.sampled_from(["lake", "hill", "road", "town", "moor", "well"])
TEXTS = st.lists(st.lists(WORD, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=12)


def slow_bm25(texts, query, k, k1=1.5, b=0.75):
    """Lucene's form of BM25, word by word."""
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        score = 0.0
        for word in query.split():
            holders, times = sum(word in other for other in documents), words.count(word)
            if times:
                rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
                score += rarity * times / (times + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    # Equal scores keep the order of the documents; the index computes in single precision.
    order = sorted(range(len(texts)), key=lambda number: (-round(scores[number], 4), number))
    return [number for number in order if scores[number] > 0][:k], scores


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(WORD, max_size=3).map(" ".join), st.integers(1, 5))
def test_a_search_ranks_as_bm25_says(texts, query, k):
    documents = [{"number": i, "title": "", "text": text} for i, text in enumerate(texts)]
    found = [int(found.name.split("#")[1]) for found in Collection(_index(documents), documents, True).search(query, k)]
    expected, scores = slow_bm25(texts, query, k)
    assert len(found) == len(expected)
    assert [scores[number] for number in found] == pytest.approx([scores[number] for number in expected], abs=1e-3)
    assert len(set(found)) == len(found)


def test_equal_scores_keep_the_order_of_the_documents():
    documents = [{"number": i, "title": f"t{i}", "text": "lake"} for i in range(9)]
    collection = Collection(_index(documents), documents, False)
    assert [found.name for found in collection.search("lake", 4)] == ["t0", "t1", "t2", "t3"]
    assert collection.search("the", 4) == collection.search("", 4) == collection.search("unknown", 4) == ()
    assert len(collection.search("lake", 99)) == 9


def test_words_are_those_of_any_language():
    assert split_words(["The Lake, l'été 日本"]) == [["lake", "l", "été", "日本"]]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_collections_divide_the_documents(share):
    corpus = corpus_of(SearchOptions(level="small", web_share=share))
    places = Counter(document.collection for document in corpus.documents())
    assert places["web"] / 1000 == pytest.approx(share, abs=0.05)
    assert set(library(corpus)) == set(places)


def test_each_collection_finds_its_own_documents():
    environment, _, _ = begin(web_share=0.5)
    home = {document.title: document.collection for document in corpus_of(environment.options).documents()}
    for name in list(home)[:30]:
        for word, collection in (("search", "local"), ("web", "web")):
            titles = environment.fork().step(f"{word} {name}").info["documents"]
            assert all(home[title] == collection for title in titles)
            assert (name in titles) == (home[name] == collection)


def test_an_empty_collection_cannot_be_searched():
    environment, _, first = begin(web_share=0.0)
    assert "web" not in first.text and not environment.step("web river").valid
    assert environment.step("search river").valid


def test_indices_are_shared_and_forks_are_references():
    one, task, _ = begin()
    other = SPEC.factory(SearchOptions(top_k=1))
    other.reset(task, 0)
    assert one._library is other._library is one.fork()._library
    one.close()
    assert other.step("search river").info["documents"]


# ---- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search the lake", Action("local", "the lake")),
        ("  Search   the\n lake ", Action("local", "the lake")),
        ("web lake", Action("web", "lake")),
        ("web_search lake", Action("web", "lake")),
        ("answer 42", Action("answer", "42")),
        ("<search> the lake </search>", Action("local", "the lake")),
        ("<web_search>lake</web_search>", Action("web", "lake")),
        ("I know. <answer>the\nlake</answer> Done.", Action("answer", "the lake")),
        ("<search>a</search><answer>guessed</answer>", Action("local", "a")),
        ("<answer>b</answer><search>a</search>", Action("answer", "b")),
        ("<think>or <answer>no</answer>?</think><search>a</search>", Action("local", "a")),
        ("<think>a</think> search b <think>c</think>", Action("local", "b")),
        ("<search>open <answer>b</answer>", Action("answer", "b")),
        ("<search><search>a</search>", Action("local", "<search>a")),
        ("", None),
        ("search", None),
        ("search   ", None),
        ("<search></search>", None),
        ("<search>a", None),
        ("</search>a<search>", None),
        ("<think>search a", None),
        ("research a", None),
        ("please search a", None),
    ],
)
def test_what_is_understood(text, action):
    assert parse_action(text) == action


@given(st.sampled_from(["local", "web", "answer"]), st.text("abc xyz,.", min_size=1).map(str.split).map(" ".join))
def test_written_actions_are_understood(kind, text):
    if text:
        for form in ("plain", "tags"):
            assert parse_action(write_action(Action(kind, text), form)) == Action(kind, text[:LONGEST])


@pytest.mark.parametrize(
    "piece", ["<search>", "<think>", "</think>", "<think></think>", "<answer></search>", "search "]
)
def test_ten_megabytes_of_anything_are_read_in_a_moment(piece):
    text = piece * (10_000_000 // len(piece))
    started = time.process_time()
    action = parse_action(text)
    assert time.process_time() - started < 10
    assert action is None or len(action.text) <= LONGEST


def test_help_names_what_is_understood():
    for form, web in itertools.product(("plain", "tags"), (False, True)):
        examples = describe(form, web).split("`")[1::2]
        assert [parse_action(example).kind for example in examples] == ["local", *(["web"] if web else []), "answer"]


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "truths", "right", "share"),
    [
        ("The Lake!", ["lake"], True, 1.0),
        ("an old lake", ["old lake", "pond"], True, 1.0),
        ("pond", ["old lake", "pond"], True, 1.0),
        ("lake", ["old lake"], False, 2 / 3),
        ("lake lake", ["lake"], False, 2 / 3),
        ("hill", ["lake"], False, 0.0),
        ("yes", ["yes"], True, 1.0),
        ("yes it is", ["yes"], False, 0.0),
        ("no", ["no lake"], False, 0.0),
        ("the", ["a"], False, 0.0),
        ("the", ["lake"], False, 0.0),
        ("lake", [], False, 0.0),
    ],
)
def test_scores(answer, truths, right, share):
    assert exact_match(answer, truths) == right
    assert f1(answer, truths) == pytest.approx(share)


@given(st.text(), st.text())
def test_scores_are_shares(answer, truth):
    assert 0.0 <= f1(answer, [truth]) <= 1.0 and f1(answer, [truth]) == f1(truth, [answer])
    assert exact_match(answer, [answer]) == bool(normalise(answer)) and normalise(normalise(answer)) == normalise(
        answer
    )
    assert (f1(answer, [truth]) == 1.0) >= exact_match(answer, [truth])


@pytest.mark.parametrize(("reward", "earned"), [("em", 0.0), ("f1", 2 / 3), ("none", 0.0)])
def test_an_answer_ends_the_episode_and_earns_what_the_recipe_says(reward, earned):
    environment, task, _ = begin(reward=reward)
    right = environment.fork().step(f"answer {task['answers'][0]}")
    assert (
        right.done
        and right.reward == (reward != "none")
        and right.info["won"]
        and right.info["score"] == right.info["f1"] == 1.0
    )
    half = environment.step(f"<answer>perhaps {task['answers'][0]}</answer>")
    assert half.done and not half.info["won"]
    assert half.reward == half.info["score"] == pytest.approx(earned) and half.info["f1"] == pytest.approx(2 / 3)
    again = environment.step(f"answer {task['answers'][0]}")
    assert again.done and not again.valid and again.reward < 0 and not again.info["won"]


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_what_is_no_action_costs_and_changes_nothing():
    environment, _, first = begin(invalid_penalty=0.05, max_steps=3)
    assert first.anchor and not first.info["won"] and first.info["recall"] == 0.0
    for number in range(3):
        step = environment.step("look around")
        assert (step.valid, step.reward, step.anchor) == (False, -0.05, first.anchor)
        assert step.truncated == (number == 2) and not step.done and "search" in step.text
    environment, task, _ = begin(max_steps=1)
    last = environment.step(f"answer {task['answers'][0]}")
    assert last.done and not last.truncated


def test_anchors_are_the_question_and_what_was_found():
    environment, task, first = begin(web_share=0.5)
    one, two = environment.fork(), environment.fork()
    for action in ("search river", "web mayor", "search nothing of this"):
        a = one.step(action)
    for action in ("web mayor", "search river", "search river"):
        b = two.step(action)
    assert a.anchor == b.anchor != first.anchor
    assert a.anchor == " | ".join([task["question"], *sorted(one.found)])
    assert len(one.found) == 6 and one.found == two.found


def test_documents_and_recall_are_told():
    environment, task, first = begin(hops=3, web_share=0.4)
    recalls, found = [0.0], set()
    for _, step in play(environment, first):
        found |= set(step.info["documents"])
        recalls.append(step.info["recall"])
        assert step.info["recall"] == len(found & set(task["support"])) / 3
    assert recalls == sorted(recalls) and recalls[-1] == 1.0 and step.info["documents"] == []


def test_observations_in_full_and_in_short():
    environment, _, first = begin(level="small", max_characters=60)
    assert first.text == first.info["commands"] == describe("plain", True)
    lines = environment.step("search river mayor").text.splitlines()
    assert [line[:4] for line in lines] == ["[1] ", "[2] ", "[3] "]
    texts = {document.title: document.text for document in corpus_of(environment.options).documents()}
    for line in lines:
        title, _, text = line[4:].partition(": ")
        assert len(text) <= 60 and texts[title].startswith(text) and texts[title][len(text)] == " "
    assert environment.step("search xyzzy").text == "Nothing was found."
    environment, _, first = begin(observation="short", actions="tags", top_k=2)
    step = environment.step("search river")
    assert first.text == "" and "\n" not in step.text and step.text.count(" : ") == 2 and step.text.count(" | ") == 1
    assert environment.step("search xyzzy").text == "nothing"


# ---- expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize(
    "options",
    [
        {"hops": (1, 2, 3)},
        {"hops": (2, 4), "level": "small", "web_share": 0.6, "top_k": 1},
        {"hops": 5, "level": "small", "web_share": 1.0, "actions": "tags", "max_steps": 6},
    ],
    ids=["tiny", "mixed", "web"],
)
@pytest.mark.parametrize("remember", [True, False])
def test_the_expert_answers_every_question(options, split, remember):
    made = SearchOptions(**{"pool": 30, "validation": 30, "max_steps": 16, **options})
    environment = SPEC.factory(made)
    for task in SPEC.tasks(made, split):
        *_, (_, last) = play(environment, environment.reset(task, 0), remember=remember)
        assert last.done and last.info["won"] and last.info["recall"] == 1.0


@pytest.mark.parametrize("remember", [True, False])
def test_the_expert_says_only_names_that_it_was_told(remember):
    options = SearchOptions(hops=3, pool=40, web_share=0.5)
    names = set(build_world(0, options.size).kinds)
    environment = SPEC.factory(options)
    for task in SPEC.tasks(options, "train"):
        first = environment.reset(task, 0)
        told = task["question"]
        for action, step in play(environment, first, random.Random(1), share=0.2, remember=remember):
            assert all(name in told for name in names & set(action.split()))
            told += f" {step.text}"


def test_a_fresh_context_is_shown_what_it_needs():
    """Without memory the latest search shows each hop's document, even if an earlier one had shown it by the way."""
    options = SearchOptions(hops=3, pool=120, validation=1, top_k=4)
    environment = SPEC.factory(options)
    shortcuts = 0
    for task in SPEC.tasks(options, "train"):
        environment.reset(task, 0)
        expert = environment.expert(random.Random(0), remember=False)
        for number, title in enumerate(task["support"]):
            shortcuts += title in environment.found and title not in {found.title for found in environment.last}
            while (action := expert.advise(number)) is not None:
                environment.step(action)
            assert title in {found.title for found in environment.last}
    assert shortcuts, "the case must occur for the test to mean anything"


def test_the_expert_recovers_from_mistakes():
    options = SearchOptions(hops=(2, 3), pool=40, max_steps=30)
    environment = SPEC.factory(options)
    for number, task in enumerate(SPEC.tasks(options, "train")):
        first = environment.reset(task, 0)
        *_, (_, last) = play(environment, first, random.Random(number), share=0.3, remember=number % 2 == 0)
        assert last.done == last.info["won"]
        assert last.done


def test_a_skipped_stage_is_the_last_hop():
    environment, task, first = begin(hops=2)
    expert = environment.expert(random.Random(0), skip_stage=1.0)
    one, two = task["relations"]
    assert environment.expert(random.Random(0)).subgoals == (
        f"{one} of {task['support'][0]}",
        f"{two} of {one}",
        f"answer {two}",
    )
    assert expert.subgoals == (f"{one} of {task['support'][0]}", f"answer {one}")
    step = first
    for number in range(2):
        while not step.done and (action := expert.advise(number)):
            step = environment.step(action)
    assert action == f"answer {task['support'][1]}" and step.done and not step.info["won"]
    environment, _, _ = begin(hops=1)
    assert len(environment.expert(random.Random(0), skip_stage=1.0).subgoals) == 2, "one hop cannot be left out"


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"hops": 0}, "hops must be at least 1"),
        ({"hops": []}, "hops must be at least 1"),
        ({"hops": "two"}, "fits none of"),
        ({"entities": 5}, "entities must be at least 24"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"pool": 0}, "at least 1 for generated"),
        ({"corpus_path": "x.jsonl"}, "corpus_path needs data_path"),
        ({"reward": "rouge"}, "is not one of 'em', 'f1', 'none'"),
        ({"topk": 3}, "did you mean 'top_k'"),
        ({"data_path": "x.jsonl", "pool": -1}, "must not be negative"),
    ],
)
def test_options_that_do_not_fit_are_refused(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


def test_a_task_without_a_question_is_refused():
    with pytest.raises(RecipeError, match="make it with `tasks`"):
        SPEC.factory(SearchOptions()).reset({"instruction": "find it"}, 0)
