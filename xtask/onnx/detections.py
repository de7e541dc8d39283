"""Comparison of detections as sets, because boxes of equal score are unordered."""

import numpy as np

TOLERANCE = 5e-4
# Architectures whose outputs are detections.
DETECTORS = ("fasterrcnn", "maskrcnn", "fcos", "retinanet", "ssdlite")


def detections(values):
    """Returns the boxes, scores and labels among the outputs of a detector."""
    boxes = next(v for v in values if v.ndim == 2)
    scores = next(v for v in values if v.ndim == 1 and v.dtype == np.float32)
    labels = next(v for v in values if v.ndim == 1 and v.dtype == np.int64)
    return boxes, scores, labels


def missing(found, expected):
    """Counts the expected detections without a match: equal label, and box and score within the tolerance."""
    (boxes, scores, labels), (own_boxes, own_scores, own_labels) = detections(expected), detections(found)
    scale, free, lost = max(np.abs(boxes).max(initial=1.0), 1.0), set(range(len(own_scores))), 0
    for box, score, label in zip(boxes, scores, labels):
        def error(i):
            return max(np.abs(own_boxes[i] - box).max() / scale, abs(own_scores[i] - score))

        candidates = [i for i in free if own_labels[i] == label]
        best = min(candidates, key=error, default=None)
        if best is None or error(best) > TOLERANCE:
            lost += 1
        else:
            free.discard(best)
    return lost + len(free)
