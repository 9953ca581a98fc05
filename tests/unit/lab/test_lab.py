"""The lab: exact answers against slow ones, gradients against verl's loss."""

from __future__ import annotations

import json

import numpy as np
import pytest

from verl_hier.credit import Credit
from verl_hier.errors import HierError
from verl_hier.lab import study
from verl_hier.lab.advice import advise, worlds_for
from verl_hier.lab.bias import compare, measure
from verl_hier.lab.curves import band
from verl_hier.lab.curves import draw as draw_curves
from verl_hier.lab.delegation import DELEGATED
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import CHAINS, PLANS, TREE, Method, method
from verl_hier.lab.reasons import NOT_FED
from verl_hier.lab.rollouts import draw, play
from verl_hier.lab.sampled import Sampled
from verl_hier.lab.update import Loss, advantages, loss_gradient
from verl_hier.lab.worlds import WORLDS
from verl_hier.testing import builtin_estimators

SHORT = Setting(turns=3000)
ALL = {**WORLDS, **DELEGATED}


def policy_of(world, seed=0):
    return world.policy(np.random.default_rng(seed).normal(size=world.legal.shape))


@pytest.mark.parametrize("name", ALL)
def test_exact_gradients_are_finite_differences(name):
    world = ALL[name]
    logits = np.random.default_rng(1).normal(size=world.legal.shape)
    exact, width = world.gradient(logits), 1e-5
    for place in zip(*np.nonzero(world.legal), strict=True):
        ends = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[place] += sign * width
            ends.append(world.expected_return(world.policy(moved)))
        assert exact[place] == pytest.approx((ends[0] - ends[1]) / (2 * width), abs=1e-8)
    assert not exact[~world.legal].any()


def by_hand(world, policy, state, turn, goal):
    """The value of a state, or the chance to solve the task from it, by going through everything that may happen."""
    if world.over[state] or turn == world.horizon:
        return float(goal and world.goal[state])
    total = 0.0
    for action in np.flatnonzero(world.legal[state]):
        later = sum(
            world.moves[state, action, to] * by_hand(world, policy, to, turn + 1, goal)
            for to in np.flatnonzero(world.moves[state, action])
        )
        total += policy[state, action] * ((0.0 if goal else world.reward[state, action]) + later)
    return total


@pytest.mark.parametrize(
    "name", [*("delayed", "maze", "two_agents", "early_end", "two_clocks", "noisy_plans"), "useful"]
)
def test_values_and_chances_are_what_may_happen(name):
    world = ALL[name]
    policy = policy_of(world)
    start = int(world.start.argmax())
    assert world.expected_return(policy) == pytest.approx(by_hand(world, policy, start, 0, goal=False))
    assert world.solved(policy) == pytest.approx(by_hand(world, policy, start, 0, goal=True))
    occupied = world.occupancy(policy)
    assert (occupied[:, :, None] * policy * world.reward).sum() == pytest.approx(world.expected_return(policy))
    assert world.regret(world.policy(np.zeros(world.legal.shape))) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ALL)
def test_the_best_policy_is_better_than_many_others(name):
    world = ALL[name]
    for seed in range(50):
        assert world.expected_return(policy_of(world, seed)) <= world.best + 1e-12
    assert world.uniform < world.best


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [CHAINS, PLANS, TREE], ids=["chains", "plans", "tree"])
def test_what_is_played_has_the_exact_means(name, shape):
    world = ALL[name]
    policy = policy_of(world)
    table = play(world, policy, 1500, shape, np.random.default_rng(0)).table
    # A path that ends early does not branch any more, so that it stands for all that would have followed.
    ways = [np.prod([shape.branches.get(turn, 1) for turn in range(turns - 1)]) for turns in table.episodes["turns"]]
    weight = 1 / (shape.roots * np.array(ways, float))
    for column, exact in (("return", world.expected_return(policy)), ("success", world.solved(policy))):
        # Episodes of one task depend on each other, so a task is one sample.
        tasks = np.bincount(table.episodes["group"], weight * table.episodes[column])
        spread = max(tasks.std(), np.sqrt(exact * (1 - exact)))
        assert abs(tasks.mean() - exact) <= 4.5 * spread / np.sqrt(len(tasks))


def test_draws_never_take_what_has_no_chance():
    chances = np.array([[0.3, 0.7 - 1e-12, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    class Edge:
        def random(self, size):
            return np.full(size, np.nextafter(1.0, 0.0))

    assert draw(chances, Edge()).tolist() == [1, 0, 1]
    drawn = draw(np.tile([0.2, 0.0, 0.8], (20_000, 1)), np.random.default_rng(0))
    assert np.bincount(drawn, minlength=3)[1] == 0 and abs((drawn == 0).mean() - 0.2) < 0.01


@pytest.mark.parametrize("clip", [0.2, np.inf])
def test_the_gradient_is_that_of_verls_loss(clip):
    torch = pytest.importorskip("torch")
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    world, rng = WORLDS["two_clocks"], np.random.default_rng(0)
    old = rng.normal(size=world.legal.shape)
    batch = play(world, world.policy(old), 6, CHAINS, rng)
    new = old + rng.normal(scale=0.3, size=old.shape)
    credit = rng.normal(size=len(batch.table))
    weighted = advantages(batch.table, Credit(credit), "token")
    chance = world.policy(old)[batch.state, batch.action]
    ours = loss_gradient(world, new, batch, weighted, chance, clip)

    table = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    masked = torch.where(torch.tensor(world.legal), table, -torch.inf)
    logprob = torch.log_softmax(masked[batch.state], dim=1)[np.arange(len(credit)), batch.action]
    width = 1e9 if np.isinf(clip) else clip
    widths = {"clip_ratio": width, "clip_ratio_low": width, "clip_ratio_high": width, "clip_ratio_c": 1e9}
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **widths)
    loss, _ = compute_policy_loss_vanilla(
        torch.tensor(np.log(chance))[None], logprob[None], torch.tensor(credit)[None], torch.ones(1, len(credit)),
        config=config,
    )  # fmt: skip
    loss.backward()
    assert np.allclose(ours, -table.grad.numpy(), atol=1e-9)


def test_bias_is_found_and_noise_is_not_taken_for_it():
    rng, exact = np.random.default_rng(0), np.array([1.0, -2.0, 0.5, 0.0])
    hits = 0
    for _ in range(200):
        found = compare(2 * exact + rng.normal(size=(300, 4)), exact, 10.0)
        hits += found.unbiased
        assert found.scale == pytest.approx(2, abs=0.3)
    assert 185 <= hits
    side = np.array([0.0, 0.0, 0.0, 1.0])
    shifted = compare(exact + side + rng.normal(size=(3000, 4)), exact, 10.0)
    length = np.linalg.norm(exact)
    assert shifted.interval[0] < 1 / length < shifted.interval[1] and not shifted.unbiased
    assert shifted.noise == pytest.approx(4 * 10 / length**2, rel=0.1)


def test_a_method_without_credit_has_no_bias():
    assert measure(WORLDS["decisive"], method("at_grpo"), batches=20) is None, "its turns have no reward of their own"


@pytest.mark.parametrize("name", ["two_clocks", "early_end", "stochastic"])
def test_reinforce_and_grpo_without_scale_are_unbiased(name):
    world = WORLDS[name]
    for made, factor in ((method("reinforce"), 1.0), (method("grpo", options={"scale": "none"}), 7 / 8)):
        found = measure(world, made, batches=1500)
        assert found.unbiased and found.interval[1] < 0.5
        assert found.scale == pytest.approx(factor, abs=0.25), (
            "the mean of a group of eight contains the episode itself"
        )


@pytest.mark.parametrize("name", ["two_clocks", "noisy_plans"])
def test_both_clocks_of_hiper_are_unbiased_with_an_exact_critic(name):
    world = WORLDS[name]
    made = method("hiper", options={"norm_adv": False, "format_penalty": 0.0})
    batch = play(world, policy_of(world), 4, made.shape, np.random.default_rng(0))
    plans = world.level[batch.state] == 0
    assert plans.any() and np.array_equal(batch.table["tokens.subgoal"], plans)
    assert not (made.credit(batch.table).values[plans] == 0).all(), "plans have credit of their own"
    found = measure(world, made, batches=1500)
    assert found.unbiased and found.interval[1] < 0.2 and found.scale == pytest.approx(1, abs=0.1)


def test_an_equal_weight_for_each_episode_favours_short_ones():
    found = measure(WORLDS["early_end"], method("grpo", options={"scale": "none"}), batches=1500, weight_by="episode")
    assert found.interval[0] > 0.5


def test_the_exact_critic_has_the_least_noise():
    world = WORLDS["early_end"]
    noise = {name: measure(world, method(name), batches=300).noise for name in ("reinforce", "rloo", "exact_critic")}
    assert noise["exact_critic"] < noise["rloo"] / 10 < noise["reinforce"] / 10


def test_methods_learn_and_a_wrong_sign_does_not():
    world = WORLDS["two_agents"]
    right = learn(world, method("grpo"), 0, Setting(turns=16000))
    assert right.regret[0] == 1.0 and right.regret[-1] < 0.1 and right.turns[-1] >= 16000
    wrong = Method("wrong", lambda table: Credit(-np.asarray(table.episodes["return"])[table["episode"]]))
    assert learn(world, wrong, 0, Setting(turns=8000)).regret[-1] > 1.5
    assert learn(world, method("grpo"), 0, SHORT) == learn(world, method("grpo"), 0, SHORT)


def test_more_epochs_make_more_steps():
    made = Method("grpo", method("grpo").credit, CHAINS, Loss(epochs=3))
    once, thrice = (learn(WORLDS["two_agents"], each, 0, SHORT).updates for each in (method("grpo"), made))
    assert thrice == 3 * once, "every episode of this world has six turns"


@pytest.mark.parametrize("name", [name for name, spec in builtin_estimators().items() if not spec.native])
def test_every_estimator_runs_or_says_what_no_world_has(name):
    try:
        made = method(name)
    except HierError as error:
        assert "no world of the lab fills the column" in str(error)
        assert name in NOT_FED
        return
    if isinstance(made.shape, Sampled):
        return  # its episodes are those of a sampler, which has a test of its own
    curve = study.run((name, "two_agents", 0), Setting(turns=600), {"builtin": True})
    assert len(curve["regret"]) >= 2
    elsewhere = study.run((name, "maze", 0), Setting(turns=300), {"builtin": True})
    assert name != "cory" or "pioneer" in elsewhere["refused"]


def test_a_study_goes_on_where_it_stopped(tmp_path):
    file, cells = tmp_path / "runs.json", [("grpo", "maze", 0), ("reinforce", "maze", 1)]
    first = study.study(cells[:1], SHORT, file, {"builtin": True}, processes=1)
    held = json.loads(file.read_text())
    held["runs"][0]["curve"]["regret"][-1] = 0.123
    file.write_text(json.dumps(held))
    both = study.study(cells, SHORT, file, {"builtin": True}, processes=1)
    assert both[cells[0]]["regret"][-1] == 0.123 != first[cells[0]]["regret"][-1], "it was not run again"
    with pytest.raises(HierError, match="another budget"):
        study.study(cells, Setting(turns=9), file)
    held["runs"][0]["seed"] = float("inf")
    for damaged in (json.dumps(held), "[1]"):
        file.write_text(damaged)
        with pytest.raises(HierError, match="no runs of the lab"):
            study.study(cells, SHORT, file)


def test_curves_have_the_mean_and_the_interval_of_their_seeds(tmp_path):
    cells = [("grpo", "maze", seed) for seed in range(3)] + [("cory", "maze", 0)]
    found = study.study(cells, SHORT, processes=1)
    assert "refused" in found["cory", "maze", 0]
    runs = [found[cell] for cell in cells[:3]]
    turns, mean, half = band(runs, "regret")
    assert (turns[0], mean[0], half[0]) == (0, 1.0, 0.0) and (np.diff(turns) > 0).all()
    ends = [np.interp(turns[-1], run["turns"], run["regret"]) for run in runs]
    assert mean[-1] == pytest.approx(np.mean(ends))
    assert half[-1] == pytest.approx(4.30 * np.std(ends, ddof=1) / 3**0.5)
    assert not band(runs[:1], "solved")[2].any(), "one run has no interval"
    draw_curves(found, tmp_path / "lab.png")
    assert (tmp_path / "lab.png").stat().st_size > 10_000


def test_summaries_are_kept_and_give_advice(tmp_path):
    curves = [{"regret": [1.0, end], "solved": [0.0, 1 - end]} for end in (0.1, 0.2)]
    quick, slow = study.summarise(curves), study.summarise([{"regret": [1.0, 0.9], "solved": [0.0, 0.1]}] * 2)
    assert quick.regret[0] == pytest.approx(0.15) and quick.regret[1] == pytest.approx(12.71 * 0.05, rel=1e-3)
    assert (quick.verdict, slow.verdict) == ("learns", "does not learn")
    worlds = worlds_for("long", "sparse", "one")
    assert worlds == ["horizon", "irrelevant", "maze"]
    table = {(name, world): summary for name, summary in (("a", slow), ("b", quick)) for world in worlds}
    table["reinforce", "maze"] = quick
    assert [each.method for each in advise(table, worlds, [], fork=True)] == ["b", "a"]
    assert [each.method for each in advise(table, worlds, ["b"], fork=False)] == ["a"]
    study.store(tmp_path / "table.json", summaries=table, samplers={("c", "maze"): quick}, longer={}, batches=7)
    assert study.stored(tmp_path / "table.json") == table
    assert study.stored(tmp_path / "table.json", "samplers") == {("c", "maze"): quick}
