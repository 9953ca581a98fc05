"""Similar anchor states as one state (arXiv 2505.10978, released code), docs/estimators/gigpo.md."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import group_ids
from verl_hier.errors import CreditError

Ints = NDArray[np.int64]


def similar_anchors(group: NDArray, anchor: Ints, texts: tuple[str, ...], threshold: float) -> Ints:
    """Greedy first-fit clusters of anchor texts inside each group.

    Distinct texts are visited in the order of their first turn; a text joins the first cluster whose representative
    (its first text) is at least `threshold` similar, else it starts one. Equal texts share a cluster, so this loops
    over distinct texts and not over turns.

    Args:
        group: (T,) task of each turn.
        anchor: (T,) int64 anchor numbers; -1 stays -1.
        texts: text of each anchor number.
        threshold: least difflib ratio.

    Returns:
        (T,) int64 cluster numbers, unique within a group, -1 where the anchor is.

    Raises:
        CreditError: when the table carries no texts for its anchors.
    """
    if anchor.size and anchor.max() >= len(texts):
        raise CreditError(
            "anchor similarity needs the text of the states; this table has numbers only. "
            "Set `hier.estimator.similarity: null`, or use an environment whose anchors are texts."
        )
    keys = group_ids(group, anchor)
    first = np.full(int(keys.max()) + 1 if keys.size else 0, anchor.size, np.int64)
    np.minimum.at(first, keys, np.arange(anchor.size))
    cluster = np.full(first.size, -1, np.int64)
    representatives: dict[int, list[tuple[int, str]]] = {}
    for key in np.argsort(first):
        turn = int(first[key])
        if anchor[turn] < 0:
            continue
        text = texts[int(anchor[turn])]
        known = representatives.setdefault(int(group[turn]), [])
        match = next((c for c, other in known if SequenceMatcher(None, text, other).ratio() >= threshold), None)
        if match is None:
            match = int(key)
            known.append((match, text))
        cluster[key] = match
    return cluster[keys]
