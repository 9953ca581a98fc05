"""The page in Chromium: by keys alone from the alarms to the arithmetic, live, and with what should not be trusted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.fixtures import random_graphs, rollout_graphs
from tests.fixtures.browser import browser, tab
from tests.fixtures.trainer import ROOT
from tests.fixtures.viewed_run import METHODS, disagree, log_step
from tests.fixtures.written_runs import training, write_run
from tests.unit.ops.test_lessons import rollout
from verl_hier.cli.view import book_of
from verl_hier.graph import Message, write_graphs
from verl_hier.graph.columnar.encode import uid_of
from verl_hier.ops.stored import Stored
from verl_hier.viewer.html import LARGEST, page

EVIL = (
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "</script><script>document.title='taken'</script>",
    "<a href=\"javascript:document.title='taken'\">come</a><style>*{display:none}</style>",
    "\u202etxet desrever\u202c \u0000\u0007\u001b[31m \ufeff \u2028 \u2066",
    "${document.title='taken'} {{constructor.constructor('1')()}}",
)


@pytest.fixture(scope="module")
def tree():
    """A graph with branches; made before the browser starts, whose driver keeps the thread's event loop."""
    return rollout_graphs.forked()


@pytest.fixture(scope="module")
def chrome(tree):
    with browser() as started:
        yield started


def written(source, file, *estimators):
    """A page of its own of some rollouts, and the book that it was made of."""
    book = book_of(Stored.at(source), list(estimators))
    pages = list(book.pages(LARGEST))
    file.write_text(page(book.overview()["run"]["name"], pages), encoding="utf-8")
    return book


def keys_to(seen, selector: str) -> list[str]:
    """The keys that lead from the top of a page to its first link of a selector, and open it."""
    links = "[...document.querySelectorAll('main a[href]')]"
    place = seen.page.evaluate(f"{links}.findIndex(link => link.matches({selector!r}))")
    assert place >= 0, f"no link is a {selector}"
    return [*["j"] * (place + 1), "Enter"]


@pytest.mark.parametrize("method", METHODS)
def test_by_keys_alone_from_the_alarms_to_the_estimator_s_own_numbers(chrome, runs, tmp_path, method):
    book = written(runs[method], tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html") as seen:
        seen.press(*keys_to(seen, "[data-alarm=flat]"))  # a group that teaches nothing
        seen.page.wait_for_selector(".tree canvas")
        assert "so it teaches nothing" in seen.page.inner_text("main")
        seen.press("2")
        seen.page.wait_for_selector(".row")
        assert seen.page.locator(".row").count() == len(book.overview()["groups"])
        seen.press("j", "Enter")  # the first group of the table
        seen.page.wait_for_selector(".tree canvas")
        where = re.fullmatch(r"#/group/(\d+)/([\w-]+)", seen.place)
        (why,) = book.why(int(where[1]), where[2])["methods"]
        seen.press("ArrowRight", "y")
        visited = set()
        for key in ("ArrowRight", "]", "]", "ArrowLeft", "ArrowDown", "b", "w"):
            seen.press(key)
            turn = int(re.search(r"/(\d+)/why$", seen.place)[1])
            seen.until(f"document.querySelector('.why h2')?.textContent.includes('turn {turn} ')")
            visited.add(turn)
            place = why["turns"].index(turn)
            assert seen.number(".why [data-what=credit]") == why["credit"][place]
            assert seen.number(".why [data-what=weight]") == why["weight"][place]
            shown = [
                float(each.get_attribute("value")) for each in seen.page.locator(".why [data-what=term] data").all()
            ]
            terms = {value for term in why["terms"] for value in term["values"]}
            assert set(shown) <= terms and (shown or not why["trained"][place] or why["credit"][place] == 0)
            if shown and all(term["unit"] == "turn" for term in why["terms"]):
                weights = [term["weight"] for term in why["terms"]] if len(shown) > 1 else [1.0]
                assert sum(a * b for a, b in zip(weights, shown, strict=True)) == pytest.approx(why["credit"][place])
        assert len(visited) > 2
        seen.press("s")
        seen.until("document.activeElement.className === 'path'")
        seen.press("Escape", "Escape")
        seen.page.wait_for_selector(".row")
        assert seen.complaints == [] and len(seen.asked) == 1 and seen.asked[0].startswith("file:")


def test_why_names_the_turn_that_lost_an_attempt(chrome, tmp_path):
    write_graphs(tmp_path / "graphs.jsonl", [rollout(tmp_path)])
    book = written(tmp_path / "graphs.jsonl", tmp_path / "out.html", "grpo")
    lost = book.why(0, "u")["lost"][0]
    with tab(chrome, tmp_path / "out.html") as seen:
        seen.page.evaluate(f"location.hash = '#/group/0/u/{lost['turn']}/why'")
        seen.page.wait_for_selector(".why [data-what=lost]")
        assert f"attempt {lost['episode']}: this turn" in seen.page.inner_text(".why [data-what=lost]")


def test_alarms_of_roles_and_of_steps_lead_to_their_groups(chrome, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["himac"], run)
    disagree(run, 2, {"planner": 0.75})
    log_step(run, 1, {"hier/rows/padding": 3.0, "hier/rows/trained": 5.0})
    written(run, tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html") as seen:
        seen.press(*keys_to(seen, "[data-alarm]"))  # what is trained with other log-probs comes first
        seen.page.wait_for_selector(".tree canvas")
        assert seen.place.startswith("#/group/2/")
        seen.press("c", "c", "c", "ArrowRight")
        seen.until("document.querySelector('.tree input:checked').parentElement.textContent.includes('log-prob')")
        seen.until("document.querySelector('.said').textContent.includes('log-prob difference 0.750')")
        seen.press("1")
        seen.page.wait_for_selector("[data-alarm=padding]")
        seen.page.evaluate("document.activeElement.blur()")
        seen.press(*keys_to(seen, "[data-alarm=padding]"))
        seen.until("document.querySelectorAll('.row').length === 3")
        assert seen.place == "#/groups/step%3A1" and seen.complaints == []


def test_help_and_filter_by_keys(chrome, runs, tmp_path):
    written(runs["himac"], tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html") as seen:
        seen.press("?")
        assert "next and previous group" in seen.page.inner_text("dialog")
        seen.press("Escape")
        assert seen.page.locator("dialog").count() == 0
        seen.press("/")
        seen.until("document.activeElement.type === 'search'")
        seen.page.keyboard.type("step:2 corridor 1")
        seen.until("document.querySelectorAll('.row').length === 1")
        seen.page.fill("input[type=search]", "go on")
        seen.press("Enter")
        seen.page.wait_for_selector(".hits a")
        assert seen.complaints == []


def test_words_of_a_plan_light_up_where_they_were_read(chrome, runs, tmp_path):
    book = written(runs["himac"], tmp_path / "out.html")
    turns = book.words(1, "task-0")["turns"]
    told = next(turn for turn in turns if any(message["sources"] for message in turn["messages"]))
    source = next(message["sources"][0] for message in told["messages"] if message["sources"])
    with tab(chrome, (tmp_path / "out.html").as_uri() + f"#/group/1/task-0/{source}/path") as seen:
        seen.page.wait_for_selector(".message.heard")
        assert f"Words of turn {source} stand in the prompts of" in seen.page.inner_text(".path")


def test_what_a_model_wrote_is_text_whatever_it_is(chrome, tree, tmp_path):
    graph = tree
    for node, evil in zip(graph.nodes, EVIL * len(graph.nodes), strict=False):
        node.text, node.role, node.agent = evil, evil, evil
        node.messages = [Message(evil, evil)]
        node.extra = {evil: evil}
        node.anchor = evil
    graph.nodes[-1].text = "<b>" * 400_000
    graph.task |= {"uid": f"../{EVIL[0]}/\"'#?&", "instruction": EVIL[1]}
    graph.episodes[0].error = EVIL[2]
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    written(tmp_path / "graphs.jsonl", tmp_path / "out.html", "tree_grpo")
    assert (tmp_path / "out.html").stat().st_size < 5_000_000
    with tab(chrome, tmp_path / "out.html") as seen:
        seen.press("2")
        seen.page.wait_for_selector(".row a")
        assert seen.page.inner_text(".row a") == EVIL[1]
        seen.press("j", "Enter")
        seen.page.wait_for_selector(".tree canvas")
        for number in range(len(graph.nodes)):
            seen.press("ArrowRight" if number == 0 else "]")
            seen.page.wait_for_selector(".turn.chosen")
        seen.page.wait_for_selector(".hidden-sign")
        assert (
            seen.page.locator("bdi.words img, bdi.words script, bdi.words a, bdi.words style, bdi.words b").count() == 0
        )
        assert "taken" not in seen.page.title().replace(uid_of(graph), "")
        assert seen.page.evaluate("getComputedStyle(document.querySelector('bdi.words')).unicodeBidi") == "isolate"
        assert seen.complaints == [] and len(seen.asked) == 1


def test_a_shared_stretch_without_branches_is_folded_until_it_is_opened(chrome, tmp_path):
    write_graphs(tmp_path / "graphs.parquet", [random_graphs.many_turns(2, 20)])
    written(tmp_path / "graphs.parquet", tmp_path / "out.html")
    folded = "document.querySelector('canvas').ariaLabel.includes('{} stretches folded')"
    with tab(chrome, (tmp_path / "out.html").as_uri() + "#/group/0/u/0") as seen:
        seen.page.wait_for_selector(".tree canvas")
        seen.until(folded.format(1))
        assert "it and the 8 turns after it are folded: o opens them" in seen.page.inner_text("main")
        seen.press("ArrowRight")
        assert seen.page.url.endswith("/9"), "one step leads past a folded stretch"
        seen.press("ArrowLeft", "o")
        seen.until(folded.format(0))
        seen.press("ArrowRight", "ArrowRight", "ArrowRight", "o")
        seen.until(folded.format(1))
        assert seen.page.url.endswith("/0"), "what is chosen inside of a stretch moves to its first turn"
        seen.press("O")
        seen.until(folded.format(0))
        seen.page.goto((tmp_path / "out.html").as_uri() + "#/group/0/u/4")
        seen.until(folded.format(0))
        seen.page.reload()
        seen.until(folded.format(0))
        assert seen.page.url.endswith("/4"), "a link into a stretch opens it"
        assert seen.complaints == []


def test_a_picture_of_the_state_is_an_image_in_which_nothing_runs(chrome, runs, tmp_path):
    book = book_of(Stored.at(runs["himac"]), [])
    begin = '<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'taken\'" width="40" height="30">'
    evil = f"{begin}{EVIL[0]}</svg>"
    book._render = lambda task, path: evil if len(path) == 1 else EVIL[1]
    (tmp_path / "out.html").write_text(page("run", list(book.pages(LARGEST))), encoding="utf-8")
    with tab(chrome, (tmp_path / "out.html").as_uri() + "#/group/1/task-0/0/path") as seen:
        seen.until("document.querySelector('img.state')?.naturalWidth === 40")
        seen.press("ArrowRight")
        seen.until("document.querySelector('[aria-label=\\'state after turn 1\\'] bdi') !== null")
        assert EVIL[1] in seen.page.inner_text(".turn.chosen")
        assert "taken" not in seen.page.title() and seen.complaints == [] and len(seen.asked) == 1


def test_a_served_page_shows_a_step_that_is_written_while_it_is_open(chrome, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["gigpo"], run)
    later = run / "graphs" / "step_000002"
    later.rename(tmp_path / "later")
    command = [sys.executable, "-m", "verl_hier.cli.main", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            address = server.stdout.readline().split()[0]
            with tab(chrome, f"{address}#/groups") as seen:
                seen.until("document.querySelectorAll('.row').length === 3")
                (tmp_path / "later").rename(later)
                seen.until("document.querySelectorAll('.row').length === 6")
                seen.press("j", "Enter")
                seen.page.wait_for_selector(".tree canvas")
                seen.press("ArrowRight", "y")
                seen.page.wait_for_selector(".why .term")
                assert seen.complaints == [] and all(each.startswith(address) for each in seen.asked)
        finally:
            server.terminate()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(chrome, runs, tmp_path, scheme):
    written(runs["himac"], tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html", color_scheme=scheme) as seen:
        ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 24, 24)"}[scheme]


def test_an_empty_run_is_a_page_with_a_sentence(chrome, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["gigpo"], run)
    for step in (run / "graphs").glob("step_*"):
        shutil.rmtree(step)
    written(run, tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html") as seen:
        assert "No rollouts are stored yet." in seen.page.inner_text("main")
        assert seen.complaints == []


CONTRASTS = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (element) => {
    for (let above = element; above; above = above.parentElement) {
      const colour = getComputedStyle(above).backgroundColor;
      if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const said = [...document.querySelectorAll("main *, header *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return said.map((element) => {
    const colour = element instanceof SVGElement ? getComputedStyle(element).fill : getComputedStyle(element).color;
    const [a, b] = [light(colour), light(ground(element))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), element.textContent.slice(0, 40)];
  });
}"""
"""The contrast of every text of the page to what is behind it, as WCAG has it."""
CUT = """() => [...document.querySelectorAll("main svg text")].filter((text) => {
  const [own, frame] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
  return own.right > frame.right + 1 || own.left < frame.left - 1 || own.bottom > frame.bottom + 1;
}).map((text) => text.textContent)"""
"""What stands beside a leaf and does not fit into its picture."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("method", ["himac", "treerl"])
def test_the_first_page_is_read_on_every_screen_and_leads_to_its_trees_by_keys(
    chrome, runs, tmp_path, method, width, scheme
):
    run = tmp_path / "run"
    shutil.copytree(runs[method], run)
    if method == "himac":  # a run with an alarm
        disagree(run, 2, {"planner": 0.75})
    for step, success in ((1, 0.25), (2, 0.5)):
        log_step(run, step, {"hier/validation/success": success})
    book = written(run, tmp_path / "out.html")
    with tab(chrome, tmp_path / "out.html", color_scheme=scheme, viewport={"width": width, "height": 1000}) as seen:
        seen.page.wait_for_selector(".trees svg")
        answers = seen.page.locator(".answers dd").all_inner_texts()
        assert answers[0] == "Held-out success 25.0% → 50.0% (+25.0 points) from step 1 to step 2."
        assert "credit of size" in answers[1]
        assert ("differ in log p" in answers[2]) == (method == "himac") and "hints below." in answers[2]
        for what in (".answers", ".trees li"):
            assert seen.page.locator(what).first.bounding_box()["y"] < 1000, "the first screen answers"
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert seen.page.evaluate(CUT) == []
        low = [each for each in seen.page.evaluate(CONTRASTS) if each[0] < 4.5]
        assert not low, low
        found = book.overview()["trees"]
        assert seen.page.locator(".trees li").count() == len(found) >= 3
        ends = [f"{'won' if won else 'lost'} {ret:.2f}".replace("-", "−") for _, ret, won in found[0]["leaves"]]
        drawn = seen.page.locator(".trees li").first.locator("text").all_text_contents()
        assert sorted(drawn) == sorted(ends)
        colours = {
            rect.get_attribute("fill")
            for rect in seen.page.locator(".trees li").first.locator("rect[data-credit]").all()
            if rect.get_attribute("data-credit") not in ("", "0")
        }
        assert len(colours) > 1, "credit has no colours"
        for number, tree in enumerate(found):
            seen.page.evaluate("document.activeElement.blur()")
            seen.press(*["j"] * (number + 1), "Enter")
            seen.page.wait_for_selector(".tree canvas")
            assert seen.place == f"#/group/{tree['step']}/{tree['uid']}"
            seen.press("1")
            seen.page.wait_for_selector(".trees svg")
        assert seen.complaints == []


def test_the_first_page_says_what_changed_against_another_run(chrome, runs, tmp_path):
    steps = {0.1: 0.3, 0.2: 0.6}
    for name, overrides in (("one", ()), ("other", ("hier.sampler.plans=4",))):
        made = write_run(tmp_path / name, training([0.2, *steps], 100, {0: 0.2, 3: 0.5}), "himac_alfworld", overrides)
        assert made.metrics_file.exists()
    shutil.copytree(runs["himac"] / "graphs", tmp_path / "one" / "graphs")
    shutil.copy(runs["himac"] / "run.json", tmp_path / "one")
    book = book_of(Stored.at(tmp_path / "one"), [], against=tmp_path / "other")
    (tmp_path / "out.html").write_text(page("one", list(book.pages(LARGEST))), encoding="utf-8")
    with tab(chrome, tmp_path / "out.html") as seen:
        rows = seen.page.locator(".changed tbody tr").all_inner_texts()
        assert any("hier.sampler.plans" in row and "4" in row for row in rows), rows
        assert "held-out success" in rows[0] and "50" in rows[0]
        assert seen.complaints == []
