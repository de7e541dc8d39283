"""Tree ensembles of the domain `ai.onnx.ml`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._features import labels_text, transformed
from ._operators import Call, numbers, operator
from ._text import strings

_ML = "ai.onnx.ml"

# Node comparisons: a row takes the true branch if the comparison of its value with the node's value is true.
_MODES = {
    "BRANCH_LEQ": "less_equal",
    "BRANCH_LT": "less",
    "BRANCH_GTE": "greater_equal",
    "BRANCH_GT": "greater",
    "BRANCH_EQ": "equal",
    "BRANCH_NEQ": "not_equal",
}


class _Forest:
    """Nodes of all trees as arrays."""

    def __init__(self, call: Call) -> None:
        import numpy as np

        trees, nodes = call.get("nodes_treeids"), call.get("nodes_nodeids")
        self.place = {key: index for index, key in enumerate(zip(trees, nodes))}
        modes = call.get("nodes_modes")
        unknown = sorted(set(modes) - _MODES.keys() - {"LEAF"})
        if unknown:
            raise ValueError(f"nodes_modes: expected comparisons, found {unknown[0]}")
        inside = [mode != "LEAF" for mode in modes]
        self.is_leaf = ~np.array(inside, np.bool_)
        self.modes = np.array([list(_MODES).index(mode) if mode in _MODES else 0 for mode in modes])
        self.features = np.array(call.get("nodes_featureids"))
        self.values = np.array(_numbers(call, "nodes_values"), np.float32)
        self.missing = np.array(call.get("nodes_missing_value_tracks_true") or [0] * len(modes), np.bool_)

        def targets(name: str) -> Any:
            found = zip(trees, call.get(name), inside)
            return np.array([self.place[tree, node] if is_inside else 0 for tree, node, is_inside in found])

        self.true, self.false = targets("nodes_truenodeids"), targets("nodes_falsenodeids")
        children = {(self.true[index], self.false[index]) for index in range(len(modes)) if inside[index]}
        below = {int(child) for pair in children for child in pair}
        first: dict[int, int] = {}
        for index, tree in enumerate(trees):
            if index not in below:
                first.setdefault(tree, index)
        self.roots = list(first.values())

    def leaves(self, rows: Any) -> list[Any]:
        """Returns the leaf that each row reaches, for each tree."""
        import numpy as np

        found = []
        compare = [getattr(np, name) for name in _MODES.values()]
        for root in self.roots:
            at = np.full(len(rows), root)
            # The number of nodes bounds the path length, because a path visits no node twice.
            for _ in range(len(self.modes)):
                open_rows = np.flatnonzero(~self.is_leaf[at])
                if not len(open_rows):
                    break
                node = at[open_rows]
                value, limit = rows[open_rows, self.features[node]], self.values[node]
                goes = np.zeros(len(node), np.bool_)
                for index, function in enumerate(compare):
                    chosen = self.modes[node] == index
                    goes[chosen] = function(value[chosen], limit[chosen])
                goes |= np.isnan(value) & self.missing[node]
                at[open_rows] = np.where(goes, self.true[node], self.false[node])
            found.append(at)
        return found


def _numbers(call: Call, name: str) -> Sequence[float]:
    found = call.get(name)
    if found is None:
        tensor = call.get(f"{name}_as_tensor")
        found = [] if tensor is None else tensor.reshape(-1).tolist()
    return found


def _forest(call: Call) -> _Forest:
    return call.node.once("forest", lambda: _Forest(call))


def _scores(call: Call, data: Any, kind: str, count: int) -> tuple[Any, Any]:
    """Returns the aggregated weights per row and target, without base values, and a mask of targets with weights."""
    import numpy as np

    forest = _forest(call)
    rows = data.reshape(1, -1) if data.ndim == 1 else data
    rows = rows.astype(np.float32)
    weights: dict[int, list[tuple[int, float]]] = {}
    keys = zip(call.get(f"{kind}_treeids"), call.get(f"{kind}_nodeids"))
    for key, target, weight in zip(keys, call.get(f"{kind}_ids"), _numbers(call, f"{kind}_weights")):
        weights.setdefault(forest.place[key], []).append((target, weight))
    how = call.get("aggregate_function", "SUM")
    start = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    totals = np.full((len(rows), count), start)
    given = np.zeros((len(rows), count), np.bool_)
    for at in forest.leaves(rows):
        for leaf in np.unique(at):
            chosen = at == leaf
            for target, weight in weights.get(int(leaf), ()):
                given[chosen, target] = True
                if how in ("MIN", "MAX"):
                    better = np.minimum if how == "MIN" else np.maximum
                    totals[chosen, target] = better(totals[chosen, target], weight)
                else:
                    totals[chosen, target] += weight
    totals = np.where(given, totals, 0.0)
    if how == "AVERAGE":
        totals /= max(len(forest.roots), 1)
    return totals, given


@operator("TreeEnsembleRegressor", numbers, _ML)
def _tree_ensemble_regressor(call: Call, data: Any) -> Any:
    import numpy as np

    count = call.get("n_targets", 1)
    totals, _ = _scores(call, data, "target", count)
    base = _numbers(call, "base_values")
    if len(base):
        totals = totals + np.array(base, np.float64)
    return transformed(totals.astype(np.float32), call.get("post_transform", "NONE"))


@operator("TreeEnsembleClassifier", labels_text, _ML)
def _tree_ensemble_classifier(call: Call, data: Any) -> Any:
    import numpy as np

    names = call.get("classlabels_strings")
    labels = names or call.get("classlabels_int64s") or []
    kind = call.get("post_transform", "NONE")
    totals, given = _scores(call, data, "class", len(labels))
    base = _numbers(call, "base_values")
    if len(labels) == 2:
        chosen, scores = _two_classes(call, totals, given, base)
    else:
        if len(base):
            totals, given = totals + np.array(base, np.float64), np.ones_like(given)
        scores = totals.astype(np.float32)
        chosen = np.where(given, scores, -np.inf).argmax(axis=1)
        scores = transformed(scores, kind)
    if names:
        return strings([labels[index] for index in chosen], (len(scores),)), scores
    return np.array([labels[index] for index in chosen], np.int64), scores


def _two_classes(call: Call, totals: Any, given: Any, base: Sequence[float]) -> tuple[Any, Any]:
    """Returns the class and the scores of each row for a binary classifier, which may have weights for one class."""
    import numpy as np

    kind = call.get("post_transform", "NONE")
    is_positive = all(weight >= 0 for weight in _numbers(call, "class_weights"))
    is_single = len(set(call.get("class_ids"))) == 1
    limit = 0.5 if is_single and is_positive else 0.0
    first, second = totals[:, 0].copy(), totals[:, 1].copy()
    has_first, has_second = given[:, 0].copy(), given[:, 1]
    if len(base) == 2:
        first, second = (
            np.where(has_second, -(base[1] + first), first + base[0]),
            np.where(has_second, base[1] + first, 0.0),
        )
        has_first |= ~has_second
    elif len(base) == 1:
        first = first + base[0]
    both = np.stack([np.where(has_first, first, 0), second], axis=1).astype(np.float32)
    # A single weight applies to the second class.
    one = first.astype(np.float32)
    if kind == "LOGISTIC":
        pair = np.stack([transformed(-one, kind), transformed(one, kind)], axis=1)
    else:
        pair = np.stack([1 - one if is_positive else -one, one], axis=1)
    scores = np.where((has_second | (len(base) == 2))[:, None], transformed(both, kind), pair)
    chosen = np.where(has_second, second, first) > limit
    return chosen.astype(np.int64), scores
