"""The `team` worker: a conversation of roles, or a lead whose agents work side by side."""

from __future__ import annotations

import re

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.team.options import RatingOptions, TeamOptions
from verl_hier_plugins.workers.team.order import ANSWER, END
from verl_hier_plugins.workers.team.visit import UNSTATED, Message, Scene, Visit, stated_share


class Team(Worker):
    """See the module."""

    def __init__(self, options: TeamOptions) -> None:
        self._options = options
        others = "|".join(map(re.escape, (*options.order.names[1:], ANSWER)))
        self._tags = re.compile(rf"<({others})>([^<]*)</\1>")

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        scene = Scene(options, episode, await episode.reset())
        if options.topology.kind == "lead":
            await _Lead(scene, self._tags).play()
            return
        talk = _Conversation(scene)
        while not scene.over:
            answer = await talk.hold()
            if options.ratings is not None and not scene.over:
                await talk.rate(options.ratings)
            if answer is not None and answer.said is not None and answer.turn is not None and not scene.over:
                await scene.act(options.answer_action.format(content=answer.said.text), answer.turn)
            if options.topology.each == "task":
                return
            scene.segment += 1


class _Conversation:
    """What was said so far, and what each role has read of it."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._said: list[Message] = []
        self._contexts: dict[str, Context] = {}
        self._read: dict[str, int] = {}

    async def hold(self) -> Visit | None:
        """Let roles speak until the order or the environment ends it; returns the last visit of the role that
        answers."""
        options, order = self._scene.options, self._scene.options.order
        begun, spoken, name = len(self._said), dict.fromkeys(options.roles, 0), order.names[0]
        answer: Visit | None = None
        self._scene.begin()
        alone = self._chosen()
        if alone is not None:
            visit = await self._speak(alone, begun)
            self._said += [] if visit.said is None else [visit.said]
            return visit if options.answer_from is not None else None
        while name != END and spoken[name] < (order.rounds or 1) and not self._scene.over:
            spoken[name] += 1
            if name in self._scene.episode.stand_ins:
                name = self._stand_in(name)
                continue
            visit = await self._speak(name, begun)
            if visit.said is not None:
                self._said.append(visit.said)
                answer = visit if name == options.answer_from else answer
            text = "" if visit.turn is None else visit.turn.text
            following = order.after(name, text)
            if following is None and visit.turn is not None:
                visit.turn.mark(valid=False, failure="no_next_role", format=0)
                visit.turn.reward(-options.roles[name].format_penalty)
            name = following or name
        return answer

    def _chosen(self) -> str | None:
        """The role that the sampler wants to speak alone in this segment."""
        scene = self._scene
        speakers = scene.episode.speakers
        if scene.segment >= len(speakers):
            return None
        name = speakers[scene.segment]
        if name not in scene.options.roles:
            raise RecipeError(
                f"hier.sampler.roles: there is no role {name!r}{did_you_mean(name, scene.options.roles)}; the team has "
                f"{', '.join(scene.options.roles)}."
            )
        return name

    async def rate(self, ratings: RatingOptions) -> None:
        """Let roles that have spoken say what the first one of them has contributed."""
        scene = self._scene
        for name in ratings.roles:
            context = self._contexts.get(name)
            if context is None:
                continue
            heard = [each for each in self._said[self._read[name] :] if each.role != name]
            self._read[name] = len(self._said)
            scene.ask(context, ratings, heard)
            turn = await scene.episode.generate(context, segment=scene.segment, max_tokens=ratings.max_tokens)
            share = stated_share(turn.text)
            turn.mark(format=int(share is not None), access_calls=0, limit_failed=0, repeat_failed=0, answered=0)
            turn.mark(rates=1, share=UNSTATED if share is None else share)

    def _stand_in(self, name: str) -> str:
        """What stands for the message of a role that is left out; returns who speaks next."""
        text = self._scene.episode.stand_ins[name]
        if text:
            self._said.append(self._scene.message(name, text))
        return self._scene.options.order.after(name, text) or name

    async def _speak(self, name: str, begun: int) -> Visit:
        """One role's turns; `begun` is the number of messages before the conversation."""
        scene, role = self._scene, self._scene.options.roles[name]
        new = name not in self._contexts or not role.memory
        together = scene.options.topology.reads == "together"
        stop = begun if together else len(self._said)
        start = self._read.get(name, 0) if role.memory else 0 if together else begun
        heard = [each for each in self._said[start:stop] if each.role != name or not role.memory]
        heard = [each for each in heard if role.sees is None or each.role in role.sees]
        if new:
            self._contexts[name] = scene.context(name)
        scene.tell(self._contexts[name], name, "prompt" if new else "later_prompt", heard)
        self._read[name] = stop
        visit = Visit(scene, name, self._contexts[name])
        while visit.said is None:
            await visit.take_turn()
        return visit


class _Lead:
    """A lead that gives tasks, whose agents work on them side by side."""

    def __init__(self, scene: Scene, tags: re.Pattern[str]) -> None:
        self._scene = scene
        self._tags = tags
        self._name = scene.options.order.names[0]
        self._given = 0

    async def play(self) -> None:
        """Give tasks and read reports until an answer, the environment or a limit ends the episode."""
        scene, topology = self._scene, self._scene.options.topology
        if self._name in scene.episode.stand_ins:
            return
        context = scene.context(self._name)
        scene.tell(context, self._name, "prompt")
        rounds, turn = topology.rounds or 10, None
        for number in range(rounds):
            scene.segment = number
            if turn is not None and not await scene.episode.room(context):
                turn.mark(limit_failed=1)
                return
            turn = await self._speak(context)
            tasks = self._read(turn)
            if tasks and tasks[0].role == ANSWER:
                turn.mark(answered=1)
                await scene.act(scene.options.answer_action.format(content=tasks[0].text), turn)
                return
            failure = "no_tag" if not tasks else "too_many_tasks" if len(tasks) > topology.parallel else None
            if failure:
                turn.mark(valid=False, failure=failure, format=0)
                turn.reward(-scene.options.roles[self._name].format_penalty)
            if not tasks and topology.retry_prompt is None:
                return
            if number == rounds - 1:
                turn.mark(limit_failed=1)
                return
            reports = await self._work(tasks[: topology.parallel])
            if scene.over:
                return
            self._answer_to(context, reports)

    async def _speak(self, context: Context) -> Turn:
        scene, role = self._scene, self._scene.options.roles[self._name]
        turn = await scene.episode.generate(context, segment=scene.segment, max_tokens=role.max_tokens)
        turn.mark(format=1, access_calls=0, limit_failed=0, repeat_failed=0, answered=0, rates=0, share=UNSTATED)
        return turn

    def _read(self, turn: Turn) -> list[Message]:
        """The tasks of a turn, or its answer alone; what it wrote behind an answer, or an answer behind tasks whose
        reports it has not read, counts for nothing."""
        found = list[Message]()
        for tag in self._tags.finditer(turn.text):
            if tag[1] == ANSWER and found:
                break
            found.append(Message(tag[1], tag[2].strip(), (turn,)))
            if tag[1] == ANSWER or len(found) > self._scene.options.topology.parallel:
                break
        return found

    def _answer_to(self, context: Context, reports: list[Message]) -> None:
        scene = self._scene
        if not reports and scene.options.topology.retry_prompt is not None:
            known = fields(scene.episode, scene.last, scene.first)
            observe(context, scene.options.topology, "retry_prompt", known, prefix="topology.")
        else:
            scene.tell(context, self._name, "later_prompt", reports)

    async def _work(self, tasks: list[Message]) -> list[Message]:
        """The reports on tasks. Each round, every agent that is not done takes one turn: the turns of a round are
        generated side by side, and then act in the order of the tasks."""
        scene, visits = self._scene, list[Visit]()
        for task in tasks:
            self._given += 1
            if task.role in scene.episode.stand_ins:
                visits.append(self._stand_in(task))
                continue
            context = scene.context(task.role, agent=f"{task.role} {self._given}")
            scene.tell(context, task.role, "prompt", task=task)
            visits.append(Visit(scene, task.role, context, task))
        while (busy := [visit for visit in visits if visit.said is None]) and not scene.over:
            await self._round(busy)
        return [visit.said for visit in visits if visit.said is not None]

    def _stand_in(self, task: Message) -> Visit:
        """The report of a role that is left out, without a turn."""
        scene, text = self._scene, self._scene.episode.stand_ins[task.role]
        return Visit(scene, task.role, scene.context(task.role), task, said=scene.message(task.role, text))

    async def _round(self, busy: list[Visit]) -> None:
        scene, ready = self._scene, list[Visit]()
        for visit in busy:
            if visit.turn is None or await scene.episode.room(visit.context):
                ready.append(visit)
            else:
                visit.said = scene.message(visit.name, scene.last.text)
                visit.turn.mark(limit_failed=1)
        scene.episode.expect({visit.context: visit.role.max_tokens for visit in ready})
        for visit in ready:
            await visit.take_turn()
            if scene.over:
                return
