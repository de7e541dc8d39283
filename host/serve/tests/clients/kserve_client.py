"""Calls of kserve's inference client against a server with the models relu, sums, rounds, copy_INT8, copy_FP16 and softmax.

Arguments: the HTTP address and the gRPC address. Prints the number of checks."""

import asyncio
import sys

import grpc
import httpx
import messages
import numpy as np
from kserve import InferInput, InferRequest, InferenceGRPCClient, InferenceRESTClient
from kserve.inference_client import RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as service
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

HTTP, GRPC = f"http://{sys.argv[1]}", sys.argv[2]
CHECKS = 0


def check(condition, what):
    global CHECKS
    CHECKS += 1
    assert condition, what


async def fails(call, status, text):
    try:
        await call
    except httpx.HTTPStatusError as error:
        check(error.response.status_code == status[0] and text in str(error), (error.response.status_code, str(error)))
    except grpc.RpcError as error:
        check(error.code() == status[1] and text in error.details(), (error.code(), error.details()))
    else:
        raise AssertionError(f"expected {status} {text}")


X = np.array([[-1, 2, -3, 4]], np.float32)
BAD = (400, grpc.StatusCode.INVALID_ARGUMENT)
MISSING = (404, grpc.StatusCode.NOT_FOUND)


def request(model, name, array, datatype="FP32", binary=True, **more):
    value = InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [value], **more)


def output_of(response, at=0):
    return response.outputs[at].as_numpy()


async def both(infer):
    """Checks common to both protocols."""
    for binary in [True, False]:
        response = await infer("relu", request("relu", "x", X, binary=binary, request_id="7"))
        check(response.id == "7" and response.model_name == "relu", response)
        check(np.array_equal(output_of(response), np.maximum(X, 0)), (binary, response))
        rows = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
        response = await infer("relu", request("relu", "x", rows, binary=binary))
        check(np.array_equal(output_of(response), np.maximum(rows, 0)), (binary, "rows"))
        small = np.array([[-7, 9]], np.int8)
        response = await infer("copy_INT8", request("copy_INT8", "x", small, "INT8", binary))
        check(output_of(response).tolist() == [[-7, 9, -7, 9]], (binary, "int8"))
        for form in [True, False]:
            outputs = [RequestedOutput("output_0", {"binary_data": form})]
            response = await infer("relu", request("relu", "x", X, binary=binary, request_outputs=outputs))
            check(np.array_equal(output_of(response), np.maximum(X, 0)), (binary, form))
    half = np.array([[0.5, -2]], np.float16)
    outputs = [RequestedOutput("output_0", {"binary_data": True})]
    response = await infer("copy_FP16", request("copy_FP16", "x", half, "FP16", request_outputs=outputs))
    check(np.array_equal(output_of(response), np.concatenate([half, half], 1)), "float16")
    parts = []
    for name, value in [("a", 1), ("b", 2), ("c", 3)]:
        part = InferInput(name, [1, 2], "FP32")
        part.set_data_from_numpy(np.full((1, 2), value, np.float32))
        parts.append(part)
    response = await infer("sums", InferRequest("sums", parts))
    check(output_of(response).tolist() == [[6, 6]] and output_of(response, 1).tolist() == [[2, 2]], "two outputs")
    await fails(infer("nope", request("nope", "x", X)), MISSING, "'nope' is not found")
    await fails(infer("relu", request("relu", "x", X[:, :3])), BAD, "unexpected shape")
    await fails(infer("relu", request("relu", "x", X.astype(np.float64), "FP64")), BAD, "data-type is 'FP64'")
    await fails(infer("relu", request("relu", "y", X)), BAD, "missing required input(s) ['x']")
    sequence = request("relu", "x", X, parameters={"sequence_id": 3})
    await fails(infer("relu", sequence), (501, grpc.StatusCode.UNIMPLEMENTED), "sequence")
    calls = [infer("relu", request("relu", "x", X * n)) for n in range(16)]
    for n, response in enumerate(await asyncio.gather(*calls)):
        check(np.array_equal(output_of(response), np.maximum(X * n, 0)), n)


async def rest():
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    check(await client.is_server_live(HTTP) and await client.is_server_ready(HTTP), "server")
    check(await client.is_model_ready(HTTP, "relu"), "model")
    check(not await client.is_model_ready(HTTP, "nope"), "unknown model")

    async def infer(model, wanted):
        return await client.infer(HTTP, wanted, model_name=model)

    await both(infer)
    # A request given as a dictionary, which the client sends unchanged.
    plain = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": X.tolist()}]}
    response = await client.infer(HTTP, plain, model_name="relu")
    check(np.array_equal(output_of(response), np.maximum(X, 0)), "dictionary")
    headers = {}
    await client.infer(HTTP, plain, model_name="relu", headers={"x-request-id": "9"}, response_headers=headers)
    check(headers["content-type"] == "application/json", headers)
    await client.close()
    # Endpoints without a client method, called through the underlying HTTP library.
    async with httpx.AsyncClient(base_url=HTTP) as plain_client:
        check((await plain_client.get("/v2/models")).json()["models"], "models")
        for path in ["load", "unload", "load"]:
            answer = await plain_client.post(f"/v2/repository/models/softmax/{path}")
            check(answer.json() == {"name": "softmax", path: True}, answer.text)


async def over_grpc():
    client = InferenceGRPCClient(GRPC)
    check(await client.is_server_live() and await client.is_server_ready(), "server")
    check(await client.is_model_ready("relu"), "model")
    await fails(client.is_model_ready("nope"), MISSING, "nope")

    async def infer(_, wanted):
        return await client.infer(wanted)

    await both(infer)
    # A run of several minutes ends at the client's deadline.
    count, start = InferInput("n", [], "INT64"), InferInput("x", [4], "FP32")
    count.set_data_from_numpy(np.array(2**62))
    start.set_data_from_numpy(np.zeros(4, np.float32))
    endless = client.infer(InferRequest("rounds", [count, start]), timeout=0.3)
    await fails(endless, (504, grpc.StatusCode.DEADLINE_EXCEEDED), "")
    await client.close()
    # Service methods without a client function, called through the client's generated stubs.
    async with grpc.aio.insecure_channel(GRPC) as channel:
        stub = GRPCInferenceServiceStub(channel)
        metadata = await stub.ServerMetadata(service.ServerMetadataRequest())
        check(metadata.name == "byoc" and "statistics" in metadata.extensions, metadata)
        metadata = await stub.ModelMetadata(service.ModelMetadataRequest(name="relu"))
        check(list(metadata.inputs[0].shape) == [-1, 4] and metadata.platform == "byoc", metadata)
        answer = await stub.RepositoryModelUnload(service.RepositoryModelUnloadRequest(model_name="softmax"))
        check(answer.model_name == "softmax" and answer.isUnloaded, answer)
        check(not (await stub.ModelReady(service.ModelReadyRequest(name="softmax"))).ready, "unloaded")
        answer = await stub.RepositoryModelLoad(service.RepositoryModelLoadRequest(model_name="softmax"))
        check(answer.model_name == "softmax" and answer.isLoaded, answer)
        check((await stub.ModelReady(service.ModelReadyRequest(name="softmax"))).ready, "loaded")


def fields():
    """Checks that the server's file has every field of kserve's copy of the messages; those of repositories differ in names alone."""
    known = messages.fields_of_file(kserve=True)
    for name, expected in messages.messages_of(service.DESCRIPTOR).items():
        if name.startswith("RepositoryModel"):
            check(set(expected.values()) <= set(known[name].values()), (name, expected, known[name]))
        else:
            check(all(known[name].get(field) == found for field, found in expected.items()), (name, expected, known[name]))


fields()
asyncio.run(rest())
asyncio.run(over_grpc())
print(f"{CHECKS} checks")
