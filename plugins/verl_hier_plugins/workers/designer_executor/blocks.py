"""Blocks: calls of a role that several agents do who only speak; docs/methods/mas_orchestra.md.

Source: SalesforceAIResearch/MAS-Orchestra at 0527c70, mas_r1_reasoner/agents/blocks_harmony/cot_sc.py:35,
reflexion.py:33 and llm_debate.py:37; the vote is mas_r1_reasoner/agents/agent_system.py:419.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_hier.rollout import Context, EpisodeView, Turn
from verl_hier.rollout.prompts import fill, observe
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions
from verl_hier_plugins.workers.react import parse_action

MESSAGE_CHARACTERS = 4000
"""The text of one role reaches another one cut to so many characters."""


@dataclass(frozen=True)
class Said:
    """What an agent has said.

    Attributes:
        agent: who.
        text: its answer, or its whole text where it has none.
        turn: the turn that said it.
        sound: whether it has an answer.
    """

    agent: str
    text: str
    turn: Turn
    sound: bool

    @property
    def whole(self) -> str:
        """What other agents of the block read: the way to the answer too."""
        return self.turn.text[:MESSAGE_CHARACTERS]

    @classmethod
    def of(cls, options: DesignerExecutorOptions, agent: str, turn: Turn) -> Said:
        """What a turn that makes no action says to others; one without an answer is marked."""
        answer = parse_action(turn.text, options.answer_tag)
        if answer is None:
            turn.mark(valid=False, failure="no_answer")
        whole = answer is None or options.answer_tag is None
        return cls(agent, (turn.text if whole else str(answer))[:MESSAGE_CHARACTERS], turn, bool(answer))


@dataclass(frozen=True)
class Asking:
    """One call of a block.

    Attributes:
        options: of the worker.
        episode: where the agents speak.
        name: the role that is called.
        known: what the templates may use.
        turns: the turns whose text fills their fields.
        plan: the designer's turn.
        segment: number of the call.
        sides: who debates, where the design says so.
    """

    options: DesignerExecutorOptions
    episode: EpisodeView
    name: str
    known: Mapping[str, str]
    turns: Mapping[str, list[Turn]]
    plan: Turn
    segment: int
    sides: Sequence[str] = ()

    def context(self, agent: str) -> Context:
        """A new context of an agent."""
        return self.episode.context("executor", agent=agent, system=self.options.executor_system)

    def begin(self, agent: str, role: str | None = None) -> Context:
        """A new context of an agent that has read the order; `role` stands for the name of the role."""
        context = self.context(agent)
        known = {**self.known, "role": (role or self.name)[: self.episode.longest_quote]}
        turns = dict(self.turns) if role is None else {**self.turns, "role": [self.plan] if self.sides else []}
        observe(context, self.options, "executor_prompt", known, turns)
        return context

    def tell(self, context: Context, option: str, said: Sequence[Said]) -> None:
        """Add a prompt of the blocks to a context, with what others have said."""
        blocks = self.options.blocks
        lines = [fill(blocks.message, {"role": each.agent, "text": each.whole}, "blocks.message") for each in said]
        joined = blocks.between.join(lines)[: self.episode.longest_quote]
        turns = {**self.turns, "said": [each.turn for each in said]}
        observe(context, blocks, option, {**self.known, "said": joined}, turns, prefix="blocks.")

    async def hear(self, asked: Mapping[str, Context]) -> list[Said]:
        """A turn of each agent, side by side."""
        self.episode.expect(dict.fromkeys(asked.values()))
        found = list[Said]()
        for agent, context in asked.items():
            turn = await self.episode.generate(context, segment=self.segment, plan=self.plan)
            found.append(Said.of(self.options, agent, turn))
        return found


async def self_consistency(asking: Asking) -> Said:
    """Several agents answer the same; what most of them say counts."""
    agents = [f"{asking.name} {number}" for number in range(1, asking.options.blocks.samples + 1)]
    return majority(await asking.hear({agent: asking.begin(agent) for agent in agents}))


def majority(said: Sequence[Said]) -> Said:
    """The last one to say what most say, and of equally many what was said first; who has no answer has no vote,
    unless nobody has one."""
    voting = [each for each in said if each.sound] or list(said)
    text = Counter(each.text for each in voting).most_common(1)[0][0]
    return next(each for each in reversed(voting) if each.text == text)


async def reflexion(asking: Asking) -> Said:
    """An agent answers, and answers again for as long as a critic, who begins anew each time, does not approve."""
    blocks, name = asking.options.blocks, asking.name
    solver = asking.begin(name)
    (attempt,) = await asking.hear({name: solver})
    for _ in range(blocks.rounds):
        critic = asking.context(f"{name} critic")
        asking.tell(critic, "critic_prompt", [attempt])
        (verdict,) = await asking.hear({f"{name} critic": critic})
        if verdict.text.strip(" .\n").casefold() == blocks.approve.casefold():
            break
        asking.tell(solver, "revise_prompt", [verdict])
        (attempt,) = await asking.hear({name: solver})
    return attempt


async def debate(asking: Asking) -> Said:
    """Sides answer, read in each round what the others have said in the last one, and somebody else decides."""
    blocks, name = asking.options.blocks, asking.name
    sides = asking.sides or blocks.sides
    contexts = {f"{name} {number}": asking.begin(f"{name} {number}", side) for number, side in enumerate(sides, 1)}
    said = await asking.hear(contexts)
    for _ in range(1, blocks.rounds):
        for agent, context in contexts.items():
            asking.tell(context, "debate_prompt", [each for each in said if each.agent != agent])
        said = await asking.hear(contexts)
    decision = asking.context(f"{name} decision")
    asking.tell(decision, "decide_prompt", said)
    return (await asking.hear({f"{name} decision": decision}))[0]


BLOCKS: dict[str, Callable[[Asking], Awaitable[Said]]] = {
    "self_consistency": self_consistency,
    "reflexion": reflexion,
    "debate": debate,
}
"""How each block is done."""
