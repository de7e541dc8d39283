"""Support vector machines with probabilities (domain `ai.onnx.ml`), as libsvm evaluates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._operators import Call, Kind, Node, operator
from ._types import strings

_ML = "ai.onnx.ml"


def _rows(data: Any) -> Any:
    import numpy as np

    return (data.reshape(1, -1) if data.ndim == 1 else data).astype(np.float32)


def _kernel(call: Call, rows: Any, vectors: Any) -> Any:
    """Returns the kernel of each row with each vector."""
    import numpy as np

    kind = call.get("kernel_type", "LINEAR")
    gamma, offset, degree = (*(call.get("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        distances = [((row - vectors) ** 2).sum(axis=-1) for row in rows]
        return np.exp(-np.float32(gamma) * np.array(distances, np.float32).reshape(len(rows), len(vectors)))
    products = rows @ vectors.T
    if kind == "POLY":
        return (np.float32(gamma) * products + np.float32(offset)) ** np.float32(degree)
    if kind == "SIGMOID":
        return np.tanh(np.float32(gamma) * products + np.float32(offset))
    return products


def _transformed(scores: Any, kind: str) -> Any:
    """Applies the `post_transform` of an operator."""
    import numpy as np

    if kind == "LOGISTIC":
        small = np.exp(-np.abs(scores))
        return np.where(scores >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
    if kind in ("SOFTMAX", "SOFTMAX_ZERO"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        if kind == "SOFTMAX_ZERO":
            powers = np.where(np.abs(scores) > 1e-7, powers, 0)
        return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    if kind == "PROBIT":
        raise ValueError("post_transform: expected a supported transformation, found PROBIT")
    return scores


def _labels_text(node: Node, kinds: Any) -> Sequence[Kind]:
    """Returns the kinds of the results: labels, which are strings or numbers, and scores."""
    return ["text" if node.attributes.get("classlabels_strings") else None, None]


@operator("SVMClassifier", _labels_text, _ML)
def _svm_classifier(call: Call, data: Any) -> Any:
    import numpy as np

    rows = _rows(data)
    names, codes = call.get("classlabels_strings"), call.get("classlabels_ints")
    labels = names or codes or []
    weights, rho = np.array(call.get("coefficients"), np.float32), np.array(call.get("rho"), np.float32)
    counts = call.get("vectors_per_class")
    if not counts:
        scores = _kernel(call, rows, weights.reshape(max(len(labels), 1), -1)) + rho[0]
        chosen = scores.argmax(axis=1)
    else:
        scores, chosen = _pairwise(call, rows, weights.reshape(-1, sum(counts)), rho, counts)
    kind = call.get("post_transform", "NONE")
    if scores.shape[1] == 1 and len(labels) == 2:
        scores = _transformed(np.concatenate([-scores, scores], axis=1), kind)
    else:
        scores = _transformed(scores.astype(np.float32), kind)
    if names:
        return strings([names[index] for index in chosen], (len(rows),)), scores
    return np.array([labels[index] for index in chosen], np.int64), scores


def _pairwise(call: Call, rows: Any, weights: Any, rho: Any, counts: list[int]) -> tuple[Any, Any]:
    """Returns the scores and the class of each row: each pair of classes has a decision, which is a vote."""
    import numpy as np

    vectors = np.array(call.get("support_vectors"), np.float32).reshape(sum(counts), -1)
    kernels, starts = _kernel(call, rows, vectors), np.cumsum([0, *counts])
    votes = np.zeros((len(rows), len(counts)), np.int64)
    decisions = []
    for one, other in _pairs(len(counts)):
        first, second = (slice(starts[index], starts[index + 1]) for index in (one, other))
        decision = kernels[:, first] @ weights[other - 1, first] + kernels[:, second] @ weights[one, second]
        decision = decision + rho[len(decisions)]
        decisions.append(decision)
        np.add.at(votes, (np.arange(len(rows)), np.where(decision > 0, one, other)), 1)
    scores = np.stack(decisions, axis=1)
    if call.get("prob_a"):
        scores = _probabilities(scores, call.get("prob_a"), call.get("prob_b"), len(counts))
    return scores, votes.argmax(axis=1)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(one, other) for one in range(count) for other in range(one + 1, count)]


def _probabilities(decisions: Any, slopes: list[float], offsets: list[float], count: int) -> Any:
    """Returns the probability of each class, coupled from those of the pairs as in Wu, Lin and Weng, "Probability
    Estimates for Multi-class Classification by Pairwise Coupling" (2004), second method."""
    import numpy as np

    exponents = decisions * np.array(slopes, np.float32) + np.array(offsets, np.float32)
    # The form of the logistic function that does not overflow.
    small = np.exp(-np.abs(exponents))
    wins = np.clip(np.where(exponents >= 0, small / (1 + small), 1 / (1 + small)), 1e-7, 1 - 1e-7)
    pairs = np.zeros((len(wins), count, count))
    for column, (one, other) in enumerate(_pairs(count)):
        pairs[:, one, other], pairs[:, other, one] = wins[:, column], 1 - wins[:, column]
    return np.array([_coupled(row) for row in pairs], np.float32)


def _coupled(pairs: Any) -> Any:
    import numpy as np

    count = len(pairs)
    matrix = -pairs.T * pairs
    np.fill_diagonal(matrix, (pairs.T**2).sum(axis=1))
    shares = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        products = matrix @ shares
        total = shares @ products
        if np.abs(products - total).max() < 0.005 / count:
            break
        for at in range(count):
            change = (total - products[at]) / matrix[at, at]
            shares[at] += change
            total = (total + change * (change * matrix[at, at] + 2 * products[at])) / (1 + change) ** 2
            products = (products + change * matrix[at]) / (1 + change)
            shares /= 1 + change
    return shares
