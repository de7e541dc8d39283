"""Distributed inference with Ray.

    import byoc.ray

    model = byoc.ray.put(byoc.compile("model.onnx", backend="dnnl"))
    dataset.map_batches(byoc.ray.Predictor, fn_constructor_args=(model,), batch_size=8, num_cpus=1)

    ray.serve.run(byoc.ray.deployment(model))

The compiled model is in Ray's object store: a node receives it once, and the workers of the node read its weights there
without a copy. The number of threads of a worker is Ray's `num_cpus`.
"""

from ._artifact import Artifact, put
from ._deployment import deployment
from ._images import Classifier, classify_folder
from ._predictor import Predictor

__all__ = ["Artifact", "Classifier", "Predictor", "classify_folder", "deployment", "put"]
