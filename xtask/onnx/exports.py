"""Exports well-known architectures with random weights through both PyTorch exporters, in ONNX test-data layout.

Usage: exports.py DIR [NAME..]. ONNX Runtime computes the expected outputs, without optimizations. A model with open
dimensions has one data set per input size. Existing exports are not overwritten.
"""

import logging
import os
import shutil
import sys
import traceback
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import torchvision.models as vision
import transformers
from detections import DETECTORS, missing
from onnx import numpy_helper

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
onnxruntime.set_default_logger_severity(3)
# The inputs of the cases are drawn when they are declared.
torch.manual_seed(0)


class Case:
    """Model to export: its constructor, inputs of one or more sizes, and its open dimensions by input."""

    def __init__(self, model, inputs, open_dims=None, names=None, outputs=None, exporters=("script", "dynamo")):
        self.model, self.inputs, self.open_dims = model, inputs, open_dims
        self.names, self.outputs, self.exporters = names, outputs, exporters


def image(batch, height, width, channels=3):
    return (torch.rand(batch, channels, height, width),)


def tokens(batch, length, vocabulary=64):
    return (torch.randint(2, vocabulary, (batch, length)),)


class Output(torch.nn.Module):
    """Module that calls a model and returns selected fields of its result as a tuple."""

    def __init__(self, model, *fields, **options):
        super().__init__()
        self.model, self.fields, self.options = model, fields, options

    def forward(self, *inputs):
        result = self.model(*inputs, **self.options)
        return tuple(result[field] for field in self.fields)


class Translation(torch.nn.Module):
    """Module that calls an encoder-decoder model."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x, decoder_input_ids):
        return self.model(**{self.name: x}, decoder_input_ids=decoder_input_ids, use_cache=False).logits


class Boxes(torch.nn.Module):
    """Detector for one image: returns boxes, labels, scores, and masks if the model has them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        found = self.model([x])[0]
        return tuple(found[key] for key in ("boxes", "labels", "scores", "masks") if key in found)


class Cached(torch.nn.Module):
    """Language model whose key-value cache is passed as inputs and returned as outputs."""

    def __init__(self, model, layers):
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, ids, mask, *past):
        cache = transformers.DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        states = []
        for layer in range(self.layers):
            keys = result.past_key_values.layers[layer]
            states += [keys.keys, keys.values]
        return (result.logits, *states)


def cached(make, layers=2, heads=2, size=16):
    def inputs(batch, length, past):
        state = [torch.randn(batch, heads, past, size) for _ in range(2 * layers)]
        return (torch.randint(2, 64, (batch, length)), torch.ones(batch, past + length, dtype=torch.int64), *state)

    open_dims = [{0: "batch", 1: "length"}, {0: "batch", 1: "total"}] + [{0: "batch", 2: "past"}] * (2 * layers)
    names = ["ids", "mask"] + [f"past.{i}.{part}" for i in range(layers) for part in ("key", "value")]
    outputs = ["logits"] + [f"present.{i}.{part}" for i in range(layers) for part in ("key", "value")]
    sizes = [inputs(2, 3, 5), inputs(1, 1, 7), inputs(2, 4, 1), inputs(3, 2, 30)]
    return Case(lambda: Cached(make(), layers), sizes, open_dims, names, outputs)


TEXT = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
LANGUAGE = dict(TEXT, num_key_value_heads=2, head_dim=16, max_position_embeddings=64, attn_implementation="eager")


def detector(make, **options):
    sizes = dict(min_size=64, max_size=96) if "size" not in options else {}
    options.pop("size", None)

    def create():
        model = make(weights=None, weights_backbone=None, **sizes, **options)
        # Makes the scores distinct: with default initial weights, most scores are equal.
        for name, parameter in model.named_parameters():
            if "cls" in name and parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=(1.0 / parameter[0].numel()) ** 0.5)
        return Boxes(model)

    return create


def classifier(make, height=64, width=None, **options):
    width = width or height
    sizes = [image(batch, height, width) for batch in (2, 1, 3, 4)]
    return Case(lambda: make(weights=None, **options), sizes, [{0: "batch"}])


SIZES = [(1, 64, 64), (2, 96, 80), (3, 65, 47), (1, 128, 33)]


def planes(make, sizes=SIZES, **options):
    dims = [{0: "batch", 2: "height", 3: "width"}]
    return Case(lambda: make(weights=None, **options), [image(*size) for size in sizes], dims)


def detection(make, **options):
    sizes = [(torch.rand(3, *size),) for size in ((64, 80), (80, 64), (96, 96), (70, 61))]
    return Case(detector(make, **options), sizes, [{1: "height", 2: "width"}], exporters=("script",))


CASES = {
    "resnet18": planes(vision.resnet18),
    "mobilenet_v3": planes(vision.mobilenet_v3_small),
    "efficientnet": planes(vision.efficientnet_b0),
    "densenet": classifier(vision.densenet121),
    "googlenet": classifier(vision.googlenet, init_weights=False, aux_logits=False),
    "inception": classifier(vision.inception_v3, 96, init_weights=False, aux_logits=False),
    "regnet": classifier(vision.regnet_y_400mf),
    "shufflenet": classifier(vision.shufflenet_v2_x0_5),
    "squeezenet": planes(vision.squeezenet1_1),
    "convnext": planes(vision.convnext_tiny),
    "swin": classifier(vision.swin_t),
    "vit": Case(
        lambda: vision.VisionTransformer(64, 16, 2, 2, 32, 64), [image(batch, 64, 64) for batch in (2, 1, 3, 4)], [{0: "batch"}]
    ),
    "maxvit": Case(lambda: vision.maxvit_t(weights=None), [image(1, 224, 224)]),
    "deeplab": Case(
        lambda: Output(vision.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None), "out"),
        [image(*size) for size in SIZES[:2] + [(1, 128, 64), (3, 64, 96)]],
        [{0: "batch", 2: "height", 3: "width"}],
    ),
    "lraspp": Case(
        lambda: Output(vision.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None), "out"),
        [image(*size) for size in SIZES[:2] + [(1, 128, 64), (3, 64, 96)]],
        [{0: "batch", 2: "height", 3: "width"}],
    ),
    "raft": Case(
        lambda: Output(vision.optical_flow.raft_small(weights=None), -1, num_flow_updates=2),
        [(torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))],
    ),
    "fasterrcnn": detection(vision.detection.fasterrcnn_resnet50_fpn, box_score_thresh=0.0),
    "maskrcnn": detection(vision.detection.maskrcnn_resnet50_fpn, box_score_thresh=0.0, box_detections_per_img=5),
    "fcos": detection(vision.detection.fcos_resnet50_fpn, score_thresh=0.0),
    "retinanet": detection(vision.detection.retinanet_resnet50_fpn, score_thresh=0.0),
    "ssdlite": detection(vision.detection.ssdlite320_mobilenet_v3_large, size=True, score_thresh=0.0),
    "llama": cached(lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LANGUAGE))),
    "qwen2": cached(lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LANGUAGE))),
    "qwen3": cached(lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LANGUAGE))),
    "mistral": cached(
        lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**LANGUAGE, sliding_window=None))
    ),
    "gemma2": cached(lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**LANGUAGE))),
    "phi3": cached(lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**LANGUAGE, pad_token_id=0))),
    "mixtral": cached(
        lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(
                **LANGUAGE, num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager"
            )
        )
    ),
    "gpt2": cached(
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64, attn_implementation="eager"
            )
        )
    ),
    "bert": Case(
        lambda: Output(transformers.BertModel(transformers.BertConfig(**TEXT)), "last_hidden_state"),
        [tokens(2, 7), tokens(1, 3), tokens(3, 11), tokens(4, 16)],
        [{0: "batch", 1: "length"}],
    ),
    "distilbert": Case(
        lambda: Output(
            transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=64, dim=32, hidden_dim=48, n_layers=2, n_heads=2)),
            "last_hidden_state",
        ),
        [tokens(2, 7), tokens(1, 3), tokens(3, 11), tokens(4, 16)],
        [{0: "batch", 1: "length"}],
    ),
    "deberta": Case(
        lambda: Output(
            transformers.DebertaV2Model(
                transformers.DebertaV2Config(
                    **TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], type_vocab_size=0
                )
            ),
            "last_hidden_state",
        ),
        [tokens(2, 7), tokens(1, 3), tokens(3, 11), tokens(4, 16)],
        [{0: "batch", 1: "length"}],
    ),
    "t5_encoder": Case(
        lambda: Output(
            transformers.T5EncoderModel(
                transformers.T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
            ),
            "last_hidden_state",
        ),
        [tokens(2, 7), tokens(1, 3), tokens(3, 11), tokens(4, 16)],
        [{0: "batch", 1: "length"}],
    ),
    "wav2vec2": Case(
        lambda: Output(
            transformers.Wav2Vec2Model(
                transformers.Wav2Vec2Config(
                    **{k: v for k, v in TEXT.items()},
                    conv_dim=(16, 16, 16),
                    conv_kernel=(10, 3, 2),
                    conv_stride=(5, 2, 2),
                    num_conv_pos_embeddings=8,
                    num_conv_pos_embedding_groups=2,
                )
            ),
            "last_hidden_state",
        ),
        [(torch.randn(*size),) for size in ((2, 800), (1, 1234), (3, 640), (1, 2000))],
        [{0: "batch", 1: "samples"}],
    ),
    "whisper": Case(
        lambda: Translation(
            transformers.WhisperForConditionalGeneration(
                transformers.WhisperConfig(
                    vocab_size=64,
                    num_mel_bins=8,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    d_model=32,
                    encoder_ffn_dim=48,
                    decoder_ffn_dim=48,
                    max_source_positions=20,
                    max_target_positions=16,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                    decoder_start_token_id=1,
                    attn_implementation="eager",
                )
            ),
            "input_features",
        ),
        [(torch.randn(batch, 8, 40), *tokens(batch, length)) for batch, length in ((2, 5), (1, 3), (3, 9), (1, 16))],
        [{0: "batch"}, {0: "batch", 1: "length"}],
    ),
    "t5": Case(
        lambda: Translation(
            transformers.T5ForConditionalGeneration(
                transformers.T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
            ),
            "input_ids",
        ),
        [(*tokens(*one), *tokens(*two)) for one, two in (((2, 7), (2, 5)), ((1, 3), (1, 1)), ((3, 9), (3, 2)), ((2, 4), (2, 6)))],
        [{0: "batch", 1: "length"}, {0: "batch", 1: "target"}],
    ),
    "segformer": Case(
        lambda: Output(
            transformers.SegformerForSemanticSegmentation(
                transformers.SegformerConfig(
                    depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=32, num_labels=5
                )
            ),
            "logits",
        ),
        [image(*size) for size in ((1, 64, 64), (2, 96, 64), (1, 128, 96), (3, 64, 128))],
        [{0: "batch", 2: "height", 3: "width"}],
    ),
    "detr_like": Case(
        lambda: torch.nn.Transformer(32, 2, 2, 2, 48, batch_first=True),
        [(torch.randn(2, 7, 32), torch.randn(2, 5, 32))],
        exporters=("dynamo",),
    ),
    "mamba": Case(
        lambda: Output(
            transformers.MambaModel(
                transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4, use_cache=False)
            ),
            "last_hidden_state",
            use_cache=False,
        ),
        [tokens(2, 7)],
        [{0: "batch"}],
        exporters=("dynamo",),
    ),
    "lstm": Case(
        lambda: Output(torch.nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True), 0),
        [(torch.randn(*size, 8),) for size in ((2, 7), (3, 4), (1, 20), (4, 3))],
        [{0: "batch", 1: "length"}],
        exporters=("script",),
    ),
    "gru": Case(
        lambda: Output(torch.nn.GRU(8, 16, 2, batch_first=True), 0),
        [(torch.randn(*size, 8),) for size in ((2, 7), (3, 4), (1, 20), (4, 3))],
        [{0: "batch", 1: "length"}],
        exporters=("script",),
    ),
}


def export(case, exporter, path):
    torch.manual_seed(7)
    model = case.model().eval()
    inputs = case.inputs[0]
    names = case.names or [f"input_{i}" for i in range(len(inputs))]
    if exporter == "dynamo":
        dims = None
        if case.open_dims:
            named = {}
            symbol = lambda name: named.setdefault(name, torch.export.Dim.DYNAMIC)
            dims = [{axis: symbol(name) for axis, name in axes.items()} for axes in case.open_dims]
            # A variadic parameter requires a nested tuple.
            if isinstance(model, Output):
                dims = (tuple(dims),)
            elif isinstance(model, Cached):
                dims = (dims[0], dims[1], tuple(dims[2:]))
            else:
                dims = tuple(dims)
        torch.onnx.export(
            model, inputs, path, dynamo=True, dynamic_shapes=dims, input_names=names, output_names=case.outputs,
            external_data=False, verbose=False,
        )
        return
    axes = None
    if case.open_dims:
        axes = dict(zip(names, case.open_dims))
    torch.onnx.export(
        model, inputs, path, dynamo=False, input_names=names, output_names=case.outputs, dynamic_axes=axes,
        opset_version=17,
    )


# Number of pictures drawn for a detector until its detections are unambiguous.
MAX_PICTURES = 20


def session(folder, level):
    """Creates an ONNX Runtime session for the export."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(f"{folder}/model.onnx", options)


def record(case, folder):
    """Writes the inputs and the ONNX Runtime outputs of each size."""
    levels = onnxruntime.GraphOptimizationLevel
    reference = session(folder, levels.ORT_DISABLE_ALL)
    # Non-maximum suppression of boxes whose scores or overlaps are nearly tied depends on rounding. A picture counts if
    # ONNX Runtime detects the same with and without optimizations.
    is_detector = os.path.basename(folder).startswith(DETECTORS)
    optimized = session(folder, levels.ORT_ENABLE_ALL) if is_detector else None
    names = [port.name for port in reference.get_inputs()]
    for number, inputs in enumerate(case.inputs):
        data = f"{folder}/test_data_set_{number}"
        os.makedirs(data)
        try:
            for _ in range(MAX_PICTURES):
                feeds = dict(zip(names, [value.numpy() for value in inputs]))
                results = reference.run(None, feeds)
                if optimized is None or not missing(optimized.run(None, feeds), results):
                    break
                inputs = [torch.rand_like(value) for value in inputs]
            else:
                raise RuntimeError(f"ONNX Runtime is undecided on {MAX_PICTURES} pictures")
        except Exception as error:
            print(f"{folder}: size {number}: {str(error).splitlines()[0][:200]}", flush=True)
            shutil.rmtree(data)
            continue
        for i, (name, value) in enumerate(feeds.items()):
            onnx.save_tensor(numpy_helper.from_array(value, name), f"{data}/input_{i}.pb")
        for i, (port, value) in enumerate(zip(reference.get_outputs(), results)):
            onnx.save_tensor(numpy_helper.from_array(value, port.name), f"{data}/output_{i}.pb")


def main():
    folder, wanted = sys.argv[1], sys.argv[2:]
    for name, case in CASES.items():
        for exporter in case.exporters:
            if wanted and name not in wanted and f"{name}_{exporter}" not in wanted:
                continue
            target = os.path.join(folder, f"{name}_{exporter}")
            if os.path.exists(f"{target}/test_data_set_0/output_0.pb"):
                continue
            shutil.rmtree(target, ignore_errors=True)
            os.makedirs(target)
            try:
                export(case, exporter, f"{target}/model.onnx")
                record(case, target)
                print(f"{name}_{exporter}: exported", flush=True)
            except Exception as error:
                shutil.rmtree(target)
                text = str(error).strip().splitlines() or [type(error).__name__]
                print(f"{name}_{exporter}: export failed: {text[0][:300]}", flush=True)
                if os.environ.get("TRACE"):
                    traceback.print_exc()


main()
