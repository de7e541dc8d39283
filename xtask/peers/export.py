"""Exports full-size models to ONNX in test-data layout: model.onnx, test_data_set_0/{input,output}_K.pb.

    python export.py DIR [MODEL...]           without a MODEL: all models

Prints the name of each model once its files are complete. Existing exports are not overwritten.

Weights are random, with a fixed seed. Batch norm statistics are fitted on random images: with the initial statistics,
activations vanish or explode from layer to layer until the output no longer depends on the input. PyTorch computes the
outputs.
"""

import pathlib
import sys

import numpy
import onnx
import torch
from onnx import numpy_helper

SIZE = {"inception_v3": 299}
VISION = [
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "squeezenet1_1",
    "vgg16", "inception_v3", "shufflenet_v2_x1_0", "regnet_y_400mf", "convnext_tiny", "vit_b_16", "swin_t",
]
TEXT = ["bert_base", "gpt2"]
MODELS = VISION + TEXT + ["lstm"]
SEQUENCE = 128


class First(torch.nn.Module):
    """Module that returns the first tensor of a model's result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        # An all-ones mask prevents language models from deriving one with operators that the exporter does not support.
        options = {"attention_mask": torch.ones_like(inputs[0])} if hasattr(self.model, "config") else {}
        result = self.model(*inputs, **options)
        return result if isinstance(result, torch.Tensor) else result[0]


def vision(name):
    import torchvision

    options = {"init_weights": True} if name == "inception_v3" else {}
    model = torchvision.models.get_model(name, weights=None, **options)
    for layer in model.modules():
        # The head of a vision transformer is initialized to zero.
        if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
            torch.nn.init.normal_(layer.weight, std=0.02)
    size = SIZE.get(name, 224)
    fit_statistics(model, size)
    return model, (torch.randn(1, 3, size, size),)


def fit_statistics(model, size):
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average over all batches
    if not norms:
        return
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(8, 3, size, size))


def text(name):
    import transformers

    if name == "bert_base":
        config = transformers.BertConfig(attn_implementation="eager")
        model = transformers.BertModel(config)
    else:
        config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
        model = transformers.GPT2Model(config)
    model.config.return_dict = False
    return model, (torch.randint(0, config.vocab_size, (1, SEQUENCE)),)


def lstm():
    return torch.nn.LSTM(256, 512, num_layers=2, batch_first=True), (torch.randn(1, 64, 256),)


def build(name):
    torch.manual_seed(0)
    if name in VISION:
        return vision(name)
    if name in TEXT:
        return text(name)
    if name == "lstm":
        return lstm()
    raise SystemExit(f"expected one of {', '.join(MODELS)}, found {name}")


def write_tensor(path, name, array):
    path.write_bytes(numpy_helper.from_array(numpy.ascontiguousarray(array), name).SerializeToString())


def write(name, folder):
    model, inputs = build(name)
    model = First(model).eval()
    with torch.no_grad():
        expected = model(*inputs)
        other = model(*[torch.randint_like(i, 1000) if not i.is_floating_point() else torch.randn_like(i) for i in inputs])
    if (expected - other).abs().max() <= 1e-3 * expected.abs().max():
        raise SystemExit(f"{name}: expected an output that depends on the input, found a constant output")
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    file = folder / "model.onnx"
    torch.onnx.export(model, inputs, str(file), opset_version=17, dynamo=False,
                      input_names=["input"], output_names=["output"])
    onnx.checker.check_model(str(file))
    write_tensor(data / "input_0.pb", "input", inputs[0].numpy())
    write_tensor(data / "output_0.pb", "output", expected.numpy())


def main():
    folder, *names = sys.argv[1:]
    for name in names or MODELS:
        target = pathlib.Path(folder) / name
        if not (target / "test_data_set_0" / "output_0.pb").exists():
            write(name, target)
        print(name, flush=True)


main()
