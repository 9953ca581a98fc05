"""From the turn table to arrays that the kernels take: scores, votes, rewards-to-go, and back from steps to turns.

Shapes as in `TurnTable`: T turns, E episodes, S steps. Nothing here mutates the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from verl_hier.credit.credit import Credit
from verl_hier.credit.groups import Bools, Floats, Ints, group_ids
from verl_hier.credit.segments import chain_links, discounted_sum, gae, shift_back
from verl_hier.errors import CreditError

if TYPE_CHECKING:
    from verl_hier.graph.turn_table import TurnTable

WeightBy = Literal["token", "row", "turn", "episode", "role"]
"""The unit that counts once: in the statistics of a group (`hier.estimator.weight_by`), in the loss (`hier.guards`)."""
Shared = Literal["repeat", "average", "owner"]


def owner_weighs(shared: Shared) -> str:
    """What an estimator with this option says as `EstimatorSpec.weighs`: `owner` alone gives turns weights in the
    loss, see `share`."""
    return "shared: owner" if shared == "owner" else ""


def turn_keys(table: TurnTable, columns: Sequence[str]) -> Ints:
    """(T,) group numbers of the turns by any turn columns, for instance ("group", "agent")."""
    return group_ids(*(table[name] for name in columns))


def turn_votes(table: TurnTable, keys: Ints, weight_by: WeightBy, where: ArrayLike | None = None) -> Floats | None:
    """(T,) weights of the turns in the statistics of their group, such that each unit of `weight_by` counts once.

    `turn`: every turn (None). `token`: every action token. `episode`: every episode, its weight shared equally by its
    turns in the group. `role`: every role of an episode. `row`: every token sequence that is trained. Only turns of
    `where` (T,), the trained ones when omitted, have a weight.
    """
    if weight_by == "turn":
        return None
    if weight_by == "token":
        return np.where(table["trained"] if where is None else where, table["n_tokens"], 0).astype(np.float64)
    owners: dict[str, tuple[str, ...]] = {"episode": ("episode",), "role": ("episode", "role"), "row": ("row",)}
    blocks = group_ids(keys, *(table[name] for name in owners[weight_by]))
    chosen = np.asarray(table["trained"] if where is None else where, bool)
    count = np.bincount(blocks, chosen)[blocks]
    return np.divide(1.0, count, out=np.zeros(count.size), where=chosen)


def episode_votes(table: TurnTable, weight_by: WeightBy) -> Floats | None:
    """(E,) weights of the episodes: None for 1 each, or the number of their trained tokens, turns, roles or rows."""
    if weight_by == "episode":
        return None
    step_episode, step_turn = table.step_episode, table.step_turn
    trained = np.asarray(table["trained"], bool)[step_turn]
    count = len(table.episodes["return"])
    if weight_by in ("turn", "token"):
        size = trained if weight_by == "turn" else trained * np.asarray(table["n_tokens"])[step_turn]
        return np.bincount(step_episode, size, count).astype(np.float64)
    column = np.asarray(table[weight_by])[step_turn]
    pairs = np.unique(np.stack([step_episode[trained], column[trained]], 1), axis=0)
    return np.bincount(pairs[:, 0], minlength=count).astype(np.float64)


def episode_sum(table: TurnTable, values: ArrayLike) -> Floats:
    """(E,) sum of turn values (T,) along the path of each episode."""
    steps = np.asarray(values, np.float64)[table.step_turn]
    return np.bincount(table.step_episode, steps, len(table.episodes["return"])).astype(np.float64)


def step_sum(table: TurnTable, values: ArrayLike) -> Floats:
    """(T,) sum of step values (S,) over the episodes that run through each turn."""
    return np.bincount(table.step_turn, np.asarray(values, np.float64), len(table)).astype(np.float64)


def step_mean(table: TurnTable, values: ArrayLike, where: ArrayLike | None = None) -> Floats:
    """(T,) mean of step values (S,) over the episodes through each turn; 0 where `where` (S,) leaves none."""
    data = np.asarray(values, np.float64)
    if len(table.step_turn) == len(table):  # every turn is on one path
        alone = np.empty(len(table))
        alone[table.step_turn] = data if where is None else np.where(np.asarray(where, bool), data, 0.0)
        return alone
    count = np.bincount(table.step_turn, where, len(table)).astype(np.float64)
    total = step_sum(table, data if where is None else np.where(np.asarray(where, bool), data, 0.0))
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def turn_credit(table: TurnTable, credit: Credit) -> Floats:
    """(T,) credit of each turn; the mean over its steps or its tokens where `credit` has a value for each of those."""
    values = np.asarray(credit.values, np.float64)
    if credit.per == "turn":
        return values
    if credit.per == "step":
        return step_mean(table, values)
    turn = np.asarray(table["tokens.turn"])
    return np.bincount(turn, values, len(table)) / np.maximum(np.bincount(turn, minlength=len(table)), 1)


def episodes_to_turns(table: TurnTable, values: ArrayLike) -> Floats:
    """(T,) mean of episode values (E,) over the trained episodes through each turn; 0 where the turn is not trained."""
    trained = np.asarray(table["episodes.trained"], bool)[table.step_episode]
    return trained_only(table, step_mean(table, np.asarray(values, np.float64)[table.step_episode], trained))


def step_links(table: TurnTable) -> Bools:
    """(S,) true where the next step belongs to the same episode."""
    return chain_links(table.step_episode)


def turn_gae(
    table: TurnTable, values: ArrayLike, gamma: float, lam: float, rewards: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Generalised advantages of turns along their episodes; a shared turn averages its episodes.

    A turn that is `done` neither bootstraps nor passes credit on. An episode that was cut bootstraps from the turn
    column `bootstrap` (value of the state after the last turn) where the table has it, else from 0.

    Args:
        table: the turn table, with `done`.
        values: (T,) critic at each turn.
        gamma, lam: discount and decay a turn.
        rewards: (T,) instead of the table's `reward`.

    Returns:
        (T,) advantages and (T,) critic targets.
    """
    turn, links = table.step_turn, step_links(table)
    value = np.asarray(values, np.float64)[turn]
    reward = np.asarray(table["reward"] if rewards is None else rewards, np.float64)[turn]
    after = np.asarray(optional(table, "bootstrap", np.zeros(len(table))), np.float64)[turn]
    alive = ~np.asarray(table["done"], bool)[turn]
    following = shift_back(value, links, after) * alive
    advantage = step_mean(table, gae(reward, value, following, links & alive, gamma, lam))
    return advantage, advantage + np.asarray(values, np.float64)


def token_chain(table: TurnTable) -> tuple[Ints, Bools, Bools]:
    """Action tokens in time order inside the episode that made them.

    Returns:
        (N,) order of the token rows; (N,) in that order, whether the next token belongs to the same episode; (N,) in
        that order, whether the token ends its turn. A branch starts a chain of its own.
    """
    turn = np.asarray(table["tokens.turn"])
    owner = np.asarray(table["episode"])[turn]
    order = np.lexsort((np.arange(turn.size), np.asarray(table["turn"])[turn], owner))
    return order, chain_links(owner[order]), ~chain_links(owner[order], turn[order])


def unordered(values: ArrayLike, order: Ints) -> Floats:
    """Values that were computed in `order`, back in the rows' own order."""
    result = np.empty(len(order))
    result[order] = values
    return result


def rewards_to_go(table: TurnTable, gamma: float, rewards: ArrayLike | None = None) -> Floats:
    """(T,) discounted reward from each turn to the end of its episode; a shared turn averages its episodes.

    Args:
        table: steps are read in time order whatever the order of the turns is.
        gamma: discount a turn.
        rewards: (T,) instead of the table's `reward`.
    """
    source = np.asarray(table["reward"] if rewards is None else rewards, np.float64)
    returns = discounted_sum(source[table.step_turn], step_links(table), gamma)
    return step_mean(table, returns)


def share(table: TurnTable, steps: ArrayLike, rule: Shared) -> Credit:
    """Step values (S,) as credit of turns that several episodes share.

    `repeat`: each episode keeps its own value (credit per step). `average`: a shared turn gets the mean over its
    episodes. `owner`: it gets the value of the episode that made it, and its loss the weight of all of them.
    Turns that are not trained get 0. Without shared turns all three agree.
    """
    trained = np.asarray(table["trained"], bool)
    values = np.where(trained[table.step_turn], np.asarray(steps, np.float64), 0.0)
    if rule == "repeat":
        return Credit(values, per="step")
    if rule == "average":
        return Credit(step_mean(table, values, np.asarray(table["episodes.trained"], bool)[table.step_episode]))
    owned = table["episode"][table.step_turn] == table.step_episode
    leaves = np.bincount(table.step_turn, minlength=len(table)).astype(np.float64)
    return Credit(step_sum(table, np.where(owned, values, 0.0)), weight=leaves)


def trained_only(table: TurnTable, values: ArrayLike) -> Floats:
    """(T,) float64 values, 0 where the turn is not trained."""
    return np.where(np.asarray(table["trained"], bool), np.asarray(values, np.float64), 0.0)


def format_penalty(table: TurnTable, amount: float) -> Floats:
    """(T,) the amount on turns whose format is wrong, 0 on the others.

    Workers say so in the column `format`; without it, turns that are not valid count.
    """
    if not amount:
        return np.zeros(len(table))
    known = optional(table, "format")
    wrong = ~np.asarray(table["valid"], bool) if known is None else np.asarray(known) == 0
    return amount * wrong.astype(np.float64)


def code_mask(table: TurnTable, vocabulary: str, names: Sequence[str]) -> Bools:
    """(T,) true where an integer column names one of `names`, for instance role planner or designer.

    Raises:
        CreditError: when the vocabulary knows none of them.
    """
    codes = [table.code(vocabulary, name) for name in names]
    known = [code for code in codes if code >= 0]
    if not known:
        have = ", ".join(table.names.get(vocabulary, ())) or "none"
        raise CreditError(f"no {vocabulary} is called {' or '.join(names)}; the worker has {have}.")
    return np.isin(table[vocabulary], known)


def optional(table: TurnTable, column: str, default: ArrayLike | None = None) -> Any:
    """A column when the table has it, else `default`."""
    if column in table:
        return table[column]
    return default
