"""Tests of the inference server in the package, and of the deployment manifests."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from conftest import DIGITS, ROOT, Case, close
from server import Server

import byoc

DEPLOY = ROOT / "deploy"
SCHEMAS = Path(__file__).parent / "kserve"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "byoc", "serve", *arguments], capture_output=True, text=True, timeout=120
    )


def test_help_and_errors(tmp_path: Path) -> None:
    shown = command("--help")
    assert shown.returncode == 0 and "--max-batch-size" in shown.stdout and not shown.stderr
    wrong = command("--no-such-option")
    assert wrong.returncode == 2 and "--no-such-option" in wrong.stderr
    empty = command("--http=0", "--grpc=0")
    assert empty.returncode == 1 and "error[E0801]" in empty.stderr


def test_answers(digits: Case) -> None:
    images = digits.feeds["image"]
    expected = byoc.compile(digits.path)(images)
    request = {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": list(images.shape), "data": images.ravel().tolist()}]
    }
    with Server(f"net={digits.path}") as server:
        status, found = server.request("/v2/models/net/infer", request)
        assert status == 200, found
        output = found["outputs"][0]
        assert close(np.array(output["data"], np.float32).reshape(output["shape"]), expected)
        status, found = server.request("/v2/models/other/infer", request)
        assert status == 404 and found["code"] == "E0806"
        assert server.stop() == 0


def test_runs_on_the_backends_of_the_package(digits: Case) -> None:
    with Server(f"net={digits.path}", "--backend=ccompiler", "--dim=batch=1") as server:
        status, found = server.request("/v2/models/net/explain")
        assert status == 200 and any(region["backend"] == "ccompiler" for region in found["regions"])


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "kserve" / f"{name}.yaml").read_text())


def schema(name: str) -> jsonschema.Draft202012Validator:
    text = json.loads((SCHEMAS / f"{name.replace('-', '_')}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(text)
    return jsonschema.Draft202012Validator(text)


NAMES = ("serving-runtime", "inference-service")


@pytest.mark.parametrize("name", NAMES)
def test_manifests_fit_the_schemas(name: str) -> None:
    assert [error.message for error in schema(name).iter_errors(manifest(name))] == []


def nodes(value: Any, path: tuple = ()) -> list[tuple]:
    """Returns the paths of all objects in a manifest."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if isinstance(value, dict) else []
    return found + [deeper for key, one in inner for deeper in nodes(one, (*path, key))]


@pytest.mark.parametrize("name", NAMES)
def test_schemas_find_unknown_fields(name: str) -> None:
    for path in nodes(manifest(name)):
        if path and path[-1] in ("annotations", "requests", "limits"):
            continue
        changed = manifest(name)
        place = changed
        for key in path:
            place = place[key]
        place["protocolVersoins"] = "v2"
        assert not schema(name).is_valid(changed), path


def test_schemas_find_what_clusters_refuse() -> None:
    runtime, service = (manifest(name) for name in NAMES)
    for change in (
        lambda r: r["spec"].pop("containers"),
        lambda r: r["spec"]["supportedModelFormats"][0].update(version=1),
        lambda r: r["spec"]["protocolVersions"].append("v3"),
        lambda r: r["spec"]["annotations"].update({"prometheus.kserve.io/port": 8080}),
        lambda r: r["spec"]["containers"][0]["env"][0].update(value=2),
        lambda r: r["spec"]["containers"][0]["resources"]["limits"].update(memory="2 GiB"),
    ):
        changed = copy.deepcopy(runtime)
        change(changed)
        assert not schema(NAMES[0]).is_valid(changed)
    for change in (
        lambda s: s["metadata"].update(name="ResNet_50"),
        lambda s: s["spec"]["predictor"]["model"].pop("modelFormat"),
        lambda s: s["spec"]["predictor"]["model"].update(storageUri="/models/resnet50"),
        lambda s: s["spec"]["predictor"].update(scaleMetric="requests"),
    ):
        changed = copy.deepcopy(service)
        change(changed)
        assert not schema(NAMES[1]).is_valid(changed)


def test_manifests_belong_together() -> None:
    runtime, service = (manifest(name) for name in NAMES)
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [one["name"] for one in runtime["spec"]["supportedModelFormats"]]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    # The container image has the same arguments.
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    words = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith(("ENTRYPOINT", "CMD"))]
    container = runtime["spec"]["containers"][0]
    assert words == [["byoc", "serve"], container["args"]]
    assert container["ports"][0]["containerPort"] == 8080


def test_runtime_serves(tmp_path: Path) -> None:
    model = tmp_path / "digits" / "1" / "model.onnx"
    model.parent.mkdir(parents=True)
    shutil.copy(DIGITS, model)
    container = manifest("serving-runtime")["spec"]["containers"][0]
    arguments = [argument.replace("/mnt/models", str(tmp_path)) for argument in container["args"]]
    # Later options take precedence, so that the server listens on free ports.
    with Server(*arguments) as server:
        assert server.request(container["readinessProbe"]["httpGet"]["path"])[0] == 200
        assert server.request(container["livenessProbe"]["httpGet"]["path"])[0] == 200
        assert server.request("/v2/models/digits")[1]["inputs"][0]["name"] == "image"


@pytest.mark.ray
@pytest.mark.parametrize(("name", "kind"), zip(NAMES, ("V1alpha1ServingRuntime", "V1beta1InferenceService")))
def test_manifests_are_those_of_kserve(name: str, kind: str) -> None:
    """Parses a manifest with the classes of the package kserve, which declare all fields and the required ones."""
    import kserve
    import kubernetes.client

    def build(kind: str, value: Any) -> Any:
        if listed := re.fullmatch(r"list\[(.*)\]", kind):
            return [build(listed[1], one) for one in value]
        if mapped := re.fullmatch(r"dict\(str, (.*)\)", kind):
            return {key: build(mapped[1], one) for key, one in value.items()}
        made = getattr(kserve, kind, None) or getattr(kubernetes.client, kind, None)
        if made is None or not hasattr(made, "attribute_map"):
            plain = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
            assert kind not in plain or isinstance(value, plain[kind]), (kind, value)
            return value
        attributes = {json_name: name for name, json_name in made.attribute_map.items()}
        return made(**{attributes[key]: build(made.openapi_types[attributes[key]], one) for key, one in value.items()})

    assert build(kind, manifest(name)).to_dict()["metadata"]["name"] == manifest(name)["metadata"]["name"]
    changed = manifest(name)
    changed["spec"]["unknown"] = 1
    with pytest.raises(KeyError):
        build(kind, changed)
