"""Deployments for Ray Serve."""

from __future__ import annotations

from typing import Any

from ._artifact import Artifact, put
from ._require import require


def deployment(
    model: Any,
    *,
    name: str = "model",
    num_cpus: float = 1,
    replicas: int | tuple[int, int] = (1, 4),
    max_batch_size: int = 8,
    batch_wait_timeout_s: float = 0.005,
    ray_actor_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns an application for `ray.serve.run`, whose replicas run a model.

        handle = ray.serve.run(byoc.ray.deployment(byoc.ray.put(model)))
        handle.remote(x).result()

    Calls that arrive while the model runs are batched along the first dimension, if it is symbolic. Calls through the
    handle accept an array, or arrays by name, and return arrays by name; over HTTP, a replica accepts the JSON of the
    Open Inference Protocol.

    model: model that `byoc.ray.put` accepts, or its result.
    name: name of the deployment, and of the model in responses.
    num_cpus: processors per replica, and number of threads.
    replicas: number of replicas, or the minimum and maximum between which Ray scales.
    max_batch_size: maximum number of rows per run; 1 disables batching. A single call is never split.
    batch_wait_timeout_s: maximum time for which a call waits to be batched.
    options: additional options of `ray.serve.deployment`, such as max_ongoing_requests.
    """
    serve = require("ray.serve")
    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    if not 0 <= least <= most or most < 1:
        raise ValueError(f"replicas: expected a number >= 1, or two in ascending order, found {replicas}")
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size: expected a number >= 1, found {max_batch_size}")
    if batch_wait_timeout_s < 0:
        raise ValueError(f"batch_wait_timeout_s: expected a number >= 0, found {batch_wait_timeout_s}")
    if num_cpus <= 0:
        raise ValueError(f"num_cpus: expected a number > 0, found {num_cpus}")
    from ._replica import Replica

    artifact = model if isinstance(model, Artifact) else put(model)
    # Permits one running and one waiting batch.
    options.setdefault("max_ongoing_requests", max(5, 2 * max_batch_size))
    if least == most:
        options["num_replicas"] = most
    else:
        scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": max_batch_size}
        options["autoscaling_config"] = {**scaling, **options.get("autoscaling_config", {})}
    made = serve.deployment(
        Replica, name=name, ray_actor_options={"num_cpus": num_cpus, **(ray_actor_options or {})}, **options
    )
    return made.bind(artifact, name, max_batch_size, batch_wait_timeout_s)
