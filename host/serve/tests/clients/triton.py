"""Calls of the real tritonclient against a server with the models relu, sums, rounds, copy_INT8, copy_FP16 and softmax.

Arguments: the HTTP address and the gRPC address. Prints the number of checks."""

import asyncio
import json
import os
import sys

import messages
import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.grpc.model_config_pb2 as model_config
import tritonclient.grpc.service_pb2 as service
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

HTTP, GRPC = sys.argv[1], sys.argv[2]
CHECKS = 0


def check(condition, what):
    global CHECKS
    CHECKS += 1
    assert condition, what


def fails(call, status, text):
    try:
        call()
    except InferenceServerException as error:
        check(status in str(error.status()) and text in error.message(), (error.status(), error.message()))
        return
    raise AssertionError(f"expected {status} {text}")


X = np.array([[-1, 2, -3, 4]], np.float32)
RELU = np.maximum(X, 0)


def tensor(module, name, array, datatype="FP32", **form):
    value = module.InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array, **form)
    return value


def both(client, module, statuses):
    """Checks common to both protocols."""
    check(client.is_server_live() and client.is_server_ready(), "server")
    check(client.is_model_ready("relu") and client.is_model_ready("relu", "1"), "model")
    result = client.infer("relu", [tensor(module, "x", X)], request_id="7")
    check(np.array_equal(result.as_numpy("output_0"), RELU), "relu")
    # Named outputs, parameters with default values, a timeout, a compressed request.
    output = module.InferRequestedOutput("output_0")
    result = client.infer("relu", [tensor(module, "x", X)], outputs=[output], priority=0, timeout=10_000_000)
    check(np.array_equal(result.as_numpy("output_0"), RELU), "named output")
    classes = module.InferRequestedOutput("output_0", class_count=2)
    result = client.infer("relu", [tensor(module, "x", X)], outputs=[classes])
    check(result.as_numpy("output_0").tolist() == [[b"4.000000:3", b"2.000000:1"]], "classes")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    result = client.infer("relu", [tensor(module, "x", rows)])
    check(np.array_equal(result.as_numpy("output_0"), np.maximum(rows, 0)), "rows")
    result = client.infer("relu", [tensor(module, "x", np.zeros((0, 4), np.float32))])
    check(result.as_numpy("output_0").shape == (0, 4), "no rows")
    half = np.array([[0.5, -2]], np.float16)
    result = client.infer("copy_FP16", [tensor(module, "x", half, "FP16")])
    check(np.array_equal(result.as_numpy("output_0"), np.concatenate([half, half], 1)), "float16")
    result = client.infer("copy_INT8", [tensor(module, "x", np.array([[-7, 9]], np.int8), "INT8")])
    check(result.as_numpy("output_0").tolist() == [[-7, 9, -7, 9]], "int8")
    fails(lambda: client.infer("nope", [tensor(module, "x", X)]), statuses[404], "'nope' is not found")
    fails(lambda: client.infer("relu", [tensor(module, "x", X[:, :3])]), statuses[400], "unexpected shape")
    fails(lambda: client.infer("relu", [tensor(module, "x", X.astype(np.float64), "FP64")]), statuses[400], "data-type is 'FP64'")
    fails(lambda: client.infer("relu", [tensor(module, "x", X)], sequence_id=3, sequence_start=True), statuses[501], "sequence")
    fails(lambda: client.infer("relu", []), statuses[400], "expected 1 inputs but got 0 inputs")
    fails(lambda: client.get_model_metadata("nope"), statuses[404], "nope")
    fails(lambda: client.get_model_config("nope"), statuses[404], "nope")
    fails(lambda: client.get_trace_settings(), statuses[501], "trace")
    fails(lambda: client.get_cuda_shared_memory_status(), statuses[501], "CUDA")
    client.unload_model("relu")
    check(not client.is_model_ready("relu"), "unloaded")
    client.load_model("relu")
    check(client.is_model_ready("relu"), "loaded")
    config = json.dumps({"max_batch_size": 2})
    client.load_model("relu", config=config)
    fails(lambda: client.infer("relu", [tensor(module, "x", rows)]), statuses[400], "batch-size must be <= 2")
    client.load_model("relu")
    fails(lambda: client.load_model("nope"), statuses[404], "nope")
    key = f"/byoc_clients_{os.getpid()}"
    region = shm.create_shared_memory_region("data", key, 64)
    try:
        shm.set_shared_memory_region(region, [X])
        client.register_system_shared_memory("data", key, 64)
        value = module.InferInput("x", [1, 4], "FP32")
        value.set_shared_memory("data", 16)
        output = module.InferRequestedOutput("output_0")
        output.set_shared_memory("data", 16, offset=32)
        client.infer("relu", [value], outputs=[output])
        check(np.array_equal(shm.get_contents_as_numpy(region, np.float32, [1, 4], 32), RELU), "shared memory")
        client.unregister_system_shared_memory("data")
        fails(lambda: client.infer("relu", [value]), statuses[404], "Unable to find shared memory region: 'data'")
        client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)


def http():
    client = http_client.InferenceServerClient(HTTP, concurrency=2)
    both(client, http_client, {400: "400", 404: "404", 501: "501"})
    check(not client.is_model_ready("nope"), "unknown model")
    check(client.get_server_metadata()["name"] == "byoc", "metadata")
    check(client.get_model_metadata("relu")["inputs"][0]["shape"] == [-1, 4], "model metadata")
    config = client.get_model_config("relu")
    check(config["max_batch_size"] == 4 and config["input"][0]["optional"] is False, "config")
    stats = client.get_inference_statistics("relu")["model_stats"][0]
    check(stats["inference_stats"]["success"]["count"] >= 5 and stats["batch_stats"], "statistics")
    check(len(client.get_model_repository_index()) == 6, "index")
    check(client.get_log_settings()["log_info"] is True, "log")
    check(client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1, "log")
    client.update_log_settings({"log_verbose_level": 0})
    # JSON inputs: the client requests binary outputs unless outputs are named.
    result = client.infer("relu", [tensor(http_client, "x", X, binary_data=False)])
    check(np.array_equal(result.as_numpy("output_0"), RELU), "json")
    output = http_client.InferRequestedOutput("output_0", binary_data=False)
    odd = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    result = client.infer("relu", [tensor(http_client, "x", odd, binary_data=False)], outputs=[output])
    check(np.array_equal(result.as_numpy("output_0")[0, 1:], [np.inf, 0, 1]), "tokens")
    for coding in ["gzip", "deflate"]:
        result = client.infer(
            "relu",
            [tensor(http_client, "x", X)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        check(np.array_equal(result.as_numpy("output_0"), RELU), coding)
    pending = [client.async_infer("relu", [tensor(http_client, "x", X * n)]) for n in range(8)]
    for n, answer in enumerate(pending):
        check(np.array_equal(answer.get_result().as_numpy("output_0"), np.maximum(X * n, 0)), "async")


def grpc():
    client = grpc_client.InferenceServerClient(GRPC)
    code = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 501: "UNIMPLEMENTED"}
    both(client, grpc_client, code)
    fails(lambda: client.is_model_ready("nope"), "NOT_FOUND", "nope")
    check(client.get_server_metadata().name == "byoc", "metadata")
    check(list(client.get_model_metadata("relu").inputs[0].shape) == [-1, 4], "model metadata")
    config = client.get_model_config("relu").config
    check(config.max_batch_size == 4 and config.input[0].data_type == 11, "config")
    check(config.HasField("dynamic_batching") and config.instance_group[0].count == 1, "config")
    stats = client.get_inference_statistics("relu", as_json=True)["model_stats"][0]
    check(int(stats["inference_stats"]["success"]["count"]) >= 5, "statistics")
    check(len(client.get_model_repository_index().models) == 6, "index")
    check(client.get_log_settings().settings["log_info"].bool_param, "log")
    for coding in ["gzip", "deflate"]:
        result = client.infer("relu", [tensor(grpc_client, "x", X)], compression_algorithm=coding)
        check(np.array_equal(result.as_numpy("output_0"), RELU), coding)
    large = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    check(np.array_equal(client.infer("relu", [tensor(grpc_client, "x", large)]).as_numpy("output_0"), np.maximum(large, 0)), "batch")
    # A run of several minutes ends at the client's deadline.
    endless = [tensor(grpc_client, "n", np.array(2**62), "INT64"), tensor(grpc_client, "x", np.zeros(4, np.float32))]
    fails(lambda: client.infer("rounds", endless, client_timeout=0.3), "DEADLINE_EXCEEDED", "")
    answers = []
    client.start_stream(lambda result, error: answers.append(error))
    try:
        client.async_stream_infer("relu", [tensor(grpc_client, "x", X)])
    except InferenceServerException:
        # The server has already rejected the stream; the callback receives the error message.
        pass
    client.stop_stream()
    check(answers and "ModelStreamInfer is not supported" in str(answers[0]), answers)


async def asynchronous():
    async with http_aio.InferenceServerClient(HTTP) as client:
        check(await client.is_server_ready(), "ready")
        check((await client.get_model_metadata("relu"))["name"] == "relu", "metadata")
        calls = [client.infer("relu", [tensor(http_aio, "x", X * n)]) for n in range(16)]
        for n, result in enumerate(await asyncio.gather(*calls)):
            check(np.array_equal(result.as_numpy("output_0"), np.maximum(X * n, 0)), "http aio")
    async with grpc_aio.InferenceServerClient(GRPC) as client:
        check(await client.is_model_ready("relu"), "ready")
        calls = [client.infer("relu", [tensor(grpc_aio, "x", X * n)]) for n in range(16)]
        for n, result in enumerate(await asyncio.gather(*calls)):
            check(np.array_equal(result.as_numpy("output_0"), np.maximum(X * n, 0)), "grpc aio")


def fields():
    """Checks that the server's file has each service message and each configuration message with a supported field, with all fields."""
    known = messages.fields_of_file()
    for name, expected in messages.messages_of(service.DESCRIPTOR).items():
        check(known.get(name) == expected, (name, known.get(name), expected))
    for name, expected in messages.messages_of(model_config.DESCRIPTOR).items():
        check(name not in known or known[name] == expected, (name, known.get(name), expected))
    methods = [method.name for method in service.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
    for method in methods:
        check(f"{method}Response" in known, method)


fields()
http()
grpc()
asyncio.run(asynchronous())
print(f"{CHECKS} checks")
