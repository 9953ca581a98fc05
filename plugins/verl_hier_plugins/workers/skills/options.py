"""What a recipe says of skills: how they are read, shown, written and verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Literal

from verl_hier.host.constraints import Count, Positive, Template, ZeroToOne

SOLVER, CONCLUDER, VERIFIER = "solver", "concluder", "verifier"
UNVERIFIED = -1
Aided = Annotated[str, Template("skill")]
Concluded = Annotated[str, Template("solution", "skill")]


@dataclass(frozen=True)
class SkillsOptions:
    """Options of `skills`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; some also the {skill} of the library, of which there may be several, or the {solution} from which one is
    written.
    """

    prompt: str = "task: {instruction} | {observation}"
    """What the solver reads first without a skill."""
    aided_prompt: Aided = "skill: {skill} | task: {instruction} | {observation}"
    """What it reads first with one; also what a new skill is verified with."""
    observation_prompt: str = "{observation}"
    """What it reads after an action."""
    aided_observation_prompt: Aided = "skill: {skill} | {observation}"
    """What it reads after an action for whose observation a skill is found, with `read: turn`."""
    found_prompt: Aided = "skill: {skill}"
    """What it reads after it has asked for skills, with `read: asked`."""
    conclude_prompt: Concluded = "conclude: {instruction} | {solution}"
    """What the concluder reads, who writes a skill down."""
    caution_prompt: Concluded = "avoid: {instruction} | {solution}"
    """What it reads instead where the task was not solved, with `conclude_from: each`."""
    system: str | None = None
    """System message of the solver, for chat models."""
    concluder_system: str | None = None
    """System message of the concluder, for chat models."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>."""
    answer_tag: str = "answer"
    """The answer of a solution is the text inside <tag>…</tag>, else its action; no skill may have it."""
    skill_tag: str = "skill"
    """The skill is the text inside <tag>…</tag>."""
    search_tag: str = "search_skills"
    """With `read: asked` the solver asks for skills by the text inside <tag>…</tag>."""
    readers: tuple[Literal["solver", "concluder"], ...] = ("solver",)
    """Roles that may read the library; a concluder who does has {skill} in its prompts."""
    read: Literal["task", "turn", "asked"] = "task"
    """When the solver reads: once before its `task`, before each `turn`, or when it has `asked`."""
    query: str = "{instruction}"
    """What is looked up, a template: {observation} for what is before the agent now. An agent that asks says it
    itself."""
    select: Literal["likelihood", "words", "bm25", "embeddings"] = "likelihood"
    """How skills are chosen: by how `likelihood` the policy finds their text behind the task, by the share of `words`
    that they have in common with the query, by `bm25`, which weighs rare words more, or by the `embeddings` of an
    `endpoint`."""
    endpoint: str = ""
    """Base of an OpenAI-compatible endpoint with embeddings, such as `http://host:8081/v1`; its key is in the variable
    OPENAI_API_KEY."""
    endpoint_model: str = ""
    """Name of the model there; empty for the only one."""
    most: Count = 1
    """Skills that are shown at once."""
    most_tokens: Count = 512
    """Tokens that they have at most; the last ones are left out."""
    temperature: Positive = 1.0
    """Of the softmax over the mean log-probs of the skills."""
    gate: ZeroToOne = 0.35
    """Least share of a skill, or of its words in common with the query, or least cosine of embeddings; one below it is
    not shown. With `bm25` those are not shown that have no word in common."""
    explore: ZeroToOne = 0.1
    """Chance that any others are shown in their place, in training."""
    conclude: ZeroToOne = 0.25
    """Share of the solved training episodes in which the concluder writes a skill down; 0 for none."""
    conclude_from: Literal["right", "each"] = "right"
    """Whether skills are written from solved episodes alone, or from `each`: also what to avoid."""
    solution: Literal["turns", "all"] = "turns"
    """What the {solution} has: the solver's `turns`, or also the observations between them."""
    verify: bool = True
    """Whether a new skill is verified at once, on the task that left it; otherwise that is left to the library."""
    right: float = 0.5
    """Least reward of a last action that counts as right when the environment does not report success."""
    longest: Count = 220
    """Characters that a skill has at most."""
    longest_solution: Count = 400
    """Characters of a solution that the concluder reads."""

    def __post_init__(self) -> None:
        tags = {"skill_tag": self.skill_tag, "search_tag": self.search_tag}
        for name, tag in tags.items():
            if tag == self.answer_tag:
                raise ValueError(f"{name} and answer_tag must differ, and both are {tag!r}")
        if self.select == "likelihood" and (self.read != "task" or CONCLUDER in self.readers):
            raise ValueError(
                "select: likelihood judges skills by the task before its first turn; take another with `read: turn`, "
                "with `read: asked` and for a concluder who reads"
            )
        if (self.select == "embeddings") != bool(self.endpoint):
            raise ValueError("select: embeddings and an endpoint go together: name both, or neither")
        if self.select == "bm25" and find_spec("bm25s") is None:
            raise ValueError("select: bm25 needs the package bm25s; pip install 'verl-hier[search]', or take `words`")

    def levels(self) -> dict[str, int]:
        """The roles that take turns."""
        writes = {CONCLUDER: 1, VERIFIER: 1} if self.verify else {CONCLUDER: 1}
        return {SOLVER: 0} | (writes if self.conclude else {})

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to turns."""
        yield f"<{self.skill_tag}> </{self.skill_tag}>"
        if self.read == "asked":
            yield f"<{self.search_tag}> </{self.search_tag}>"
