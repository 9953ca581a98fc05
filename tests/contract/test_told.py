"""What a schedule tells the workers: from the batch of verl's trainer to the request of a task, and into the graph."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_hier.compat import agent_loop
from verl_hier.compat.tasks import TaskMixin
from verl_hier.graph.nodes import RolloutGraph
from verl_hier.rollout.unfinished import UnfinishedEpisodes
from verl_hier.training.schedule import Phase, Schedule


class Tells(Schedule):
    """Tells each task its number and the step."""

    def phase(self, step):
        return Phase("joint")

    def told(self, step, tasks):
        return [{"questions": [f"{task} in {step}"]} for task in tasks]


class Draws:
    """verl's part: a batch of three tasks, and a validation of two batches."""

    def _validate(self):
        return [batch.get("hier_told") for batch in self.val_dataloader]

    def _next_train_batch(self, num_prompts=None):
        batch = TensorDict({}, batch_size=3)
        tu.assign_non_tensor_stack(batch, "index", [4, 9, 2])
        return batch


class Trainer(TaskMixin, Draws):
    """The seam between the two."""

    def __init__(self, schedule):
        self.schedule, self.global_steps = schedule, 5
        self.val_dataloader = [{"index": np.array([7, 8])}, {"index": np.array([9])}]
        self.hier = SimpleNamespace(curriculum=SimpleNamespace(horizons=()))
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=2)))


def test_each_task_of_a_batch_is_told_its_own():
    batch = Trainer(Tells())._next_train_batch()
    told = [json.loads(text) for text in tu.get(batch, "hier_told")]
    assert told == [{"questions": [f"{task} in 5"]} for task in (4, 9, 2)]


def test_a_schedule_that_says_nothing_adds_nothing():
    class Silent(Tells):
        def told(self, step, tasks):
            return None

    assert "hier_told" not in Trainer(Silent())._next_train_batch()


def test_an_evaluation_is_told_what_the_schedule_says_to_it():
    class Answers(Tells):
        def told_in_evaluation(self, tasks):
            return [{"skills": [str(task)]} for task in tasks]

    trainer = Trainer(Answers())
    loader = trainer.val_dataloader
    told = [[json.loads(text) for text in batch] for batch in trainer._validate()]
    assert told == [[{"skills": ["7"]}, {"skills": ["8"]}], [{"skills": ["9"]}]]
    assert trainer.val_dataloader is loader and "hier_told" not in loader[0]
    assert Trainer(Tells())._validate() == [None, None], "by default it is told nothing"


@pytest.mark.parametrize("validate", [False, True])
def test_the_request_of_a_task_has_what_it_was_told(validate):
    asked = []

    class Runner:
        def pool(self, workers):
            asked.append(workers)

        async def roll_out(self, request, policy, environments, on_lost):
            asked.append(request)
            return RolloutGraph(task=dict(request.identity), step=request.step, seed=0, request=request.to_dict())

    worker = object.__new__(agent_loop.HierAgentLoopWorker)
    worker.config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(
            rollout=SimpleNamespace(n=2, val_kwargs=SimpleNamespace(n=1), agent=SimpleNamespace(num_workers=3))
        )
    )
    worker._runner, worker._pool, worker._policy = Runner(), None, None
    worker._unfinished = UnfinishedEpisodes(0)
    prompt = {"uid": "u", "index": 4, "hier_task": json.dumps({"instruction": "x"})}
    prompt["hier_told"] = json.dumps({"questions": ["4 in 5"]})
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    graph = asyncio.run(worker._roll_out(prompt, params, Phase("joint"), 5, validate))
    told = {"questions": ["4 in 5"]}
    workers, request = asked
    assert workers == 3 and request.told == told and graph.request.get("told", {}) == told and "hier_told" not in prompt
