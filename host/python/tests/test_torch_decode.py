"""Decoding with a key-value cache, compared with PyTorch at each step; run on demand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import byoc  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

LAYERS, HEADS, HEAD_SIZE, VOCABULARY = 2, 2, 16, 64
PROMPT, STEPS = 5, 64


class Llama(torch.nn.Module):
    """Language model whose key-value cache is passed as inputs and returned as outputs."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=HEADS * HEAD_SIZE, intermediate_size=48,
                             num_hidden_layers=LAYERS, num_attention_heads=HEADS, head_dim=HEAD_SIZE,
                             max_position_embeddings=PROMPT + STEPS, attn_implementation="eager")  # fmt: skip
        self.model = LlamaForCausalLM(config)

    def forward(self, ids, mask, *past):  # noqa: ANN001, ANN002, ANN201
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        states = [state for layer in result.past_key_values.layers for state in (layer.keys, layer.values)]
        return (result.logits, *states)


def export(network: Llama, file: Path) -> list[str]:
    """Exports the network with open lengths. Returns the names of the inputs."""
    parts = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    names = ["ids", "mask", *(f"past.{part}" for part in parts)]
    past = [torch.randn(1, HEADS, 7, HEAD_SIZE) for _ in parts]
    example = (torch.randint(VOCABULARY, (1, 3)), torch.ones(1, 10, dtype=torch.int64), *past)
    axes = [{1: "length"}, {1: "total"}] + [{2: "past"}] * len(parts)
    with torch.no_grad():
        torch.onnx.export(network, example, file, dynamo=False, input_names=names,
                          output_names=["logits", *(f"present.{part}" for part in parts)],
                          dynamic_axes=dict(zip(names, axes)))  # fmt: skip
    return names


@pytest.mark.parametrize("backend", [None, "ccompiler", "dnnl"])
def test_decoding_from_one_artifact(tmp_path: Path, backend: str | None) -> None:
    if backend == "dnnl" and not os.environ.get("BYOC_DNNL_LIB"):
        pytest.skip("oneDNN is not installed")
    torch.manual_seed(0)
    network = Llama().eval()
    names = export(network, tmp_path / "llama.onnx")
    byoc.compile(tmp_path / "llama.onnx", backend=backend).save(tmp_path / "llama.byoc")
    model = byoc.load(tmp_path / "llama.byoc")
    ids = torch.randint(VOCABULARY, (1, PROMPT))
    past = [torch.zeros(1, HEADS, 0, HEAD_SIZE) for _ in names[2:]]
    found_past = [state.numpy() for state in past]
    total = 0
    for step in range(1 + STEPS):
        total += ids.shape[1]
        mask = torch.ones(1, total, dtype=torch.int64)
        with torch.no_grad():
            expected, *past = network(ids, mask, *past)
        # Each side extends its own cache, so that errors would accumulate.
        feeds = dict(zip(names, [ids.numpy(), mask.numpy(), *found_past]))
        found, *found_past = model.run(feeds).values()
        expected = expected.numpy()
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 5e-4 * np.abs(expected).max(), step
        ids = torch.from_numpy(found[:, -1:].argmax(-1))
