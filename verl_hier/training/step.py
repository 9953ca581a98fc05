"""One training step between rollout and update: turn table, guards, estimator, token arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.credit import Credit
from verl_hier.credit.estimate import estimate
from verl_hier.errors import CreditError, RolloutError
from verl_hier.graph.columnar.light import Light
from verl_hier.graph.columnar.writing import Explained
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.training.guards import (
    RewardHistory,
    alarm,
    answer_metrics,
    group_metrics,
    logprob_metrics,
    tool_metrics,
)
from verl_hier.training.ledger import Ledger
from verl_hier.training.loss_table import PolicyLossOfRun
from verl_hier.training.metrics import credit_metrics, rollout_metrics
from verl_hier.training.options import GuardOptions, ProcessRewardOptions
from verl_hier.training.probes import Asked
from verl_hier.training.process_reward import add_step_rewards, learned_weights
from verl_hier.training.schedule import Schedule
from verl_hier.training.value_heads import Heads, add_values, head_metrics, learned_fields

CORRECTED_MASK = "corrected_mask"
"""Column of `train_step`: `response_mask` without the tokens that verl's rollout correction has rejected."""

Rows = list[NDArray[Any]]
RowLosses = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(R,) task of each row, as in the turn table, and (R,) its loss."""


class TrainingStep:
    """The rows of one step, and their positions in a batch that verl has padded and reordered since.

    Attributes:
        ledger: of the rows.
        credit: uid to what training made of each node of the task, once the step is credited.
    """

    def __init__(self, light: Light, keys: Sequence[str]) -> None:
        """
        Args:
            light: of the tasks of all rows.
            keys: TransferQueue key of each row.
        """
        self.ledger = Ledger(light, keys)
        self.credit: dict[str, Explained] = {}
        self._place = {key: place for place, key in enumerate(keys)}

    def places(self, keys: Sequence[str]) -> list[int]:
        """Row number of each key; -1 for padding rows."""
        return [self._place.get(key, -1) for key in keys]

    def gathered(self, keys: Sequence[str], rows: Rows) -> NDArray[Any]:
        """Rows of a batch in its present order, padding included, as (N,) values in the order of the ledger."""
        return _gather(rows, self.places(keys), self.ledger.lengths)

    def scattered(self, keys: Sequence[str], values: NDArray[Any]) -> Rows:
        """The opposite of `gathered`."""
        return _scatter(self.ledger.split(values), self.places(keys))

    def row_losses(self, keys: Sequence[str], columns: Mapping[str, Rows], low: float, high: float) -> RowLosses:
        """The clipped loss of each row under other log-probs than those it was credited with.

        Args:
            keys: keys of the batch in its present order, padding included.
            columns: `advantages`, `old_log_probs`, `log_probs` and `response_mask`, one array a row in that order.
            low, high: the policy ratio is clipped to [1 - low, 1 + high].
        """
        flat = {name: _gather(rows, self.places(keys), self.ledger.lengths) for name, rows in columns.items()}
        ratio = np.exp(np.clip(flat["log_probs"] - flat["old_log_probs"], -20.0, 20.0))
        plain = -flat["advantages"] * ratio
        losses = np.maximum(plain, -flat["advantages"] * np.clip(ratio, 1.0 - low, 1.0 + high))
        rows, mask = self.ledger.row, flat["response_mask"]
        count = np.maximum(np.bincount(rows, mask, len(self.ledger.lengths)), 1.0)
        group = np.asarray(self.ledger.table["episodes.group"], np.int64)[self.ledger.episode]
        return group, np.bincount(rows, losses * mask, len(count)) / count

    def describe(self) -> dict[str, float]:
        """Metrics of the rollout and its groups."""
        light, table = self.ledger.light, self.ledger.table
        return rollout_metrics(light) | group_metrics(table) | answer_metrics(light) | tool_metrics(light)

    def check_losses(self, share: float) -> None:
        """Stop a run whose environment is broken, instead of training on the few episodes that ended regularly.

        Raises:
            RolloutError: when more than `share` of the step's episodes were lost to faults; it quotes one of them.
        """
        episodes = self.ledger.light.columns.episodes
        lost = episodes.filter(pc.equal(episodes["status"], "failed"))
        if len(episodes) and len(lost) / len(episodes) > share:
            raise RolloutError(
                f"{len(lost)} of {len(episodes)} episodes were lost to faults, more than hier.rollout.max_failed_share "
                f"({share:.0%}) allows. One of them: {lost['error'][0]}"
            )


def train_step(
    step: TrainingStep,
    *,
    keys: list[str],
    columns: Mapping[str, Rows],
    host: PluginHost,
    estimator: Part,
    guards: GuardOptions,
    schedule: Schedule,
    number: int,
    metrics: dict[str, Any],
    history: RewardHistory | None = None,
    heads: Heads = MappingProxyType({}),
    probed: Sequence[Asked] = (),
    process_reward: ProcessRewardOptions | None = None,
    loss: PolicyLossOfRun = PolicyLossOfRun(),  # noqa: B008 (immutable)
    left_out: Sequence[int] = (),
) -> dict[str, Rows]:
    """Credit the step and return the token fields that verl's update reads.

    Args:
        step: rows and rollouts; what credit each node gets is noted in it.
        keys: keys of the batch in its present order, padding included.
        columns: `response_mask`, `old_log_probs`, `rollout_log_probs`, `entropy`, `values` as one array a row, in that
            order, where the trainer has them; `CORRECTED_MASK` where a correction of the mismatch between rollout and
            training has rejected tokens, which then neither count in comparisons nor weigh; those that `values_of`
            names for each head;
            `advantages` too, where verl has computed them (`EstimatorSpec.native`).
        host: enabled plugins, for the credit events.
        estimator: spec and options.
        guards: limits, loss weighting and shared-prefix rule.
        schedule: may add columns to the turn table.
        number: trainer step.
        metrics: everything that is logged is added to it.
        history: the returns of the steps before, to which this one's are added; None: jumps are not looked for.
        heads: heads of the critic by name.
        probed: the probes of the recipe with their answers.
        process_reward: of the recipe; `columns` then have `process_reward.LOG_PROBS`.
        loss: the policy loss, which decides what loss weights look like.
        left_out: numbers of rows that are compared and not trained.

    Returns:
        `advantages` and `returns`, which a native estimator leaves as they are, `rollout_is_weights` when weights are
        not all 1, `response_mask` when the credit or `left_out` leaves tokens out, and what the heads
        (`learned_fields`) and the process reward (`learned_weights`) learn; in the order of `keys`.
    """
    ledger = step.ledger
    places = step.places(keys)
    flat = {name: _gather(rows, places, ledger.lengths) for name, rows in columns.items()}
    _add_token_columns(ledger, flat)
    add_values(ledger, heads, flat)
    for asked in probed:
        ledger.table.turns.update(asked.columns(ledger.table))
        metrics.update(asked.metrics())
    if process_reward is not None:
        add_step_rewards(ledger, process_reward, flat, flat["response_mask"])
    host.hook.hier_table_ready(table=ledger.table, step=number)
    metrics.update(schedule.table_ready(ledger.table, number))
    metrics.update(step.describe())
    if history is not None:
        metrics.update(history.add(ledger.table["episodes.return"]))
    mask = flat["response_mask"]
    difference = None
    if "rollout_log_probs" in flat and "old_log_probs" in flat:
        with np.errstate(invalid="ignore"):  # what is no number is an alarm
            difference = np.abs(np.subtract(flat["rollout_log_probs"], flat["old_log_probs"], dtype=np.float64))
        metrics.update(logprob_metrics(ledger.table, ledger.turn, mask, difference))
    metrics["hier/guards/alarms"] = float(alarm(metrics, guards, estimator.spec.needs_groups))
    if CORRECTED_MASK in flat:
        ledger.reject(mask, flat[CORRECTED_MASK])
        mask = flat[CORRECTED_MASK]
    native = estimator.spec.native
    if native:
        credit = Credit(ledger.turn_means(flat["advantages"], mask))
    else:
        credit = estimate(estimator.spec, ledger.table, estimator.options)
    host.hook.hier_credit_ready(table=ledger.table, credit=credit, step=number)
    metrics.update(credit_metrics(ledger.table, credit))
    metrics.update(host.metrics(table=ledger.table, credit=credit, step=number))
    fields = learned_fields(ledger, heads, credit, mask)
    metrics.update(head_metrics(heads, flat, fields))
    if process_reward is not None:
        learned, found = learned_weights(ledger, process_reward, mask)
        fields |= learned
        metrics.update(found)
    if credit.tokens is not None:
        mask = mask * ledger.spread(credit.tokens, "token", guards.shared_prefix)
        fields["response_mask"] = mask
    if len(left_out):
        mask = mask * ~np.isin(ledger.row, left_out)
        fields["response_mask"] = mask
    if not native:
        fields |= _advantages(ledger, credit, mask, guards)
    weights = ledger.weights(credit, mask, guards.weight_by, guards.shared_prefix, loss.row_mean)
    if weights is not None:
        _require_honoured(ledger, weights, mask, loss)
        fields["rollout_is_weights"] = weights
    step.credit = ledger.explain(credit, mask if weights is None else weights, mask, difference)
    return {name: _scatter(ledger.split(values), places) for name, values in fields.items()}


def _advantages(ledger: Ledger, credit: Credit, mask: NDArray[Any], guards: GuardOptions) -> dict[str, NDArray[Any]]:
    advantages = ledger.spread(credit.values, credit.per, guards.shared_prefix) * mask
    if credit.factor is not None:
        advantages *= ledger.spread(credit.factor, "token", guards.shared_prefix)
    returns = advantages if credit.returns is None else ledger.spread(credit.returns, credit.per, guards.shared_prefix)
    return {"advantages": advantages, "returns": returns * mask}


def _require_honoured(ledger: Ledger, weights: NDArray[Any], mask: NDArray[Any], loss: PolicyLossOfRun) -> None:
    """Stop a run whose loss weights the policy loss would not honour, where a part did not declare that it weighs.

    Raises:
        CreditError: naming the recipe line of the loss.
    """
    line = f"actor_rollout_ref.actor.policy_loss.loss_mode: {loss.name}"
    advice = "take another loss, such as vanilla, or an estimator and a schedule without weights"
    if loss.weights == "row":
        trained = (mask > 0) & (ledger.turn >= 0)
        low, high = np.full(len(ledger.lengths), np.inf), np.zeros(len(ledger.lengths))
        np.minimum.at(low, ledger.row[trained], weights[trained])
        np.maximum.at(high, ledger.row[trained], weights[trained])
        if (high - low > 1e-9 * high).any():
            raise CreditError(
                f"{line} has one loss weight a row, and those of this step differ inside a row; {advice}."
            )
    elif loss.weights != "token":
        raise CreditError(f"{line} does not multiply tokens by loss weights, which this step has; {advice}.")


def _gather(rows: Rows, places: list[int], lengths: list[int]) -> NDArray[Any]:
    """Rows of a padded, reordered batch as one flat array in the ledger's order."""
    ordered: list[NDArray[Any]] = [np.zeros(0)] * len(lengths)
    for row, place in zip(rows, places, strict=True):
        if place >= 0:
            ordered[place] = row
    return np.concatenate(ordered)


def _scatter(rows: Rows, places: list[int]) -> Rows:
    """The ledger's rows in the batch's order; verl's padding rows have one token, which is not trained."""
    return [rows[place] if place >= 0 else np.zeros(1) for place in places]


def _add_token_columns(ledger: Ledger, flat: Mapping[str, NDArray[Any]]) -> None:
    """Bring the critic's values, the training log-probs and the policy's exact entropies to the token columns; the
    entropies replace the rollout's estimates."""
    tokens = ledger.table.tokens
    if "turn" not in tokens:
        return
    positions = ledger.token_positions()
    on_action = positions >= 0
    for source, name in (("old_log_probs", "old_logprob"), ("entropy", "entropy"), ("values", "value")):
        if source in flat:
            column = np.zeros(len(tokens["turn"]))
            column[positions[on_action]] = flat[source][on_action]
            tokens[name] = column
    if "values" in flat:
        counts = np.asarray(ledger.table["n_tokens"], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        ledger.table.turns["value"] = tokens["value"][np.minimum(starts, len(tokens["value"]) - 1)]
