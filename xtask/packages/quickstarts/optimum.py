# packages: optimum-onnx==0.1.0 optimum torch transformers onnxscript
import pathlib
import tempfile

import torch
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500)
network = BertForSequenceClassification(config).eval()
folder = pathlib.Path(tempfile.mkdtemp())
ids = torch.randint(0, 500, (2, 16))
feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
names = list(feeds)
torch.onnx.export(
    network, (), folder / "model.onnx", kwargs=feeds, input_names=names, output_names=["logits"], dynamo=True,
    dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names}, verbose=False,
)  # fmt: skip
config.save_pretrained(folder)
model = ORTModelForSequenceClassification.from_pretrained(folder)


def call():
    return model(**feeds).logits
