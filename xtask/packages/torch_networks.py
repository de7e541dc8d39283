"""Runs networks with `torch.compile` on byoc: torch_networks.py [NAME..]

The networks have random weights; there are graph breaks, open sizes and detectors among them. For each: the number of
exports, those after the fifth call, the first call, and the median times of eager PyTorch and of byoc. The exit code is
1 if results differ, if there are exports after the fifth call, or if byoc takes more than 1.1 times as long as eager.
"""

import sys
import time
import warnings

import numpy as np
import torch
import torchvision

import byoc.torch

LIMIT, SLOWEST = 2e-3, 1.1


class Broken(torch.nn.Module):
    """Network with a graph break: a branch on a value."""

    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)
        self.last = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10))

    def forward(self, x):
        h = torch.relu(self.one(x))
        if h.sum().item() > 0:
            h = self.other(h)
        return self.last(h)


class Rows(torch.nn.Module):
    """Attention over rows whose number differs from call to call."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x).mean(dim=1)


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    return BertModel(config)


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(n_embd=256, n_layer=4, n_head=4, use_cache=False))


def detector(name):
    return lambda: getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None)


def classifier(name):
    return lambda: getattr(torchvision.models, name)(weights=None)


def picture(size):
    return lambda _: (torch.randn(1, 3, size, size),)


def words(call):
    return (torch.randint(0, 1000, (1, (32, 48, 64)[call % 3])),)


NETWORKS = {
    "mobilenet_v2": (classifier("mobilenet_v2"), picture(224)),
    "resnet18": (classifier("resnet18"), picture(224)),
    "efficientnet_b0": (classifier("efficientnet_b0"), picture(224)),
    "vit_b_16": (classifier("vit_b_16"), picture(224)),
    "fasterrcnn_mobilenet_v3_large_320_fpn": (
        detector("fasterrcnn_mobilenet_v3_large_320_fpn"), lambda _: ([torch.rand(3, 320, 320)],),
    ),
    "ssdlite320_mobilenet_v3_large": (
        detector("ssdlite320_mobilenet_v3_large"), lambda _: ([torch.rand(3, 320, 320)],),
    ),
    "broken": (Broken, lambda call: (torch.randn(64, 1024),)),
    "rows": (Rows, lambda call: (torch.randn(2, (17, 33, 50)[call % 3], 128),)),
    "bert": (bert, words),
    "gpt2": (gpt2, words),
}  # fmt: skip


def tensors(value):
    """Returns the tensors in a result in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [one for key in value for one in tensors(value[key])]
    return [one for part in value for one in tensors(part)] if isinstance(value, (list, tuple)) else []


def difference(found, expected):
    worst = 0.0
    for one, other in zip(tensors(found), tensors(expected), strict=True):
        if one.shape != other.shape:
            return float("inf")
        scale = float(other.abs().max()) if other.numel() else 1
        worst = max(worst, float((one - other).abs().max()) / (scale or 1) if other.numel() else 0)
    return worst


def median(call, feeds):
    times = []
    while len(times) < 6 or (sum(times) < 4 and len(times) < 60):
        start = time.perf_counter()
        call(*feeds[len(times) % len(feeds)])
        times.append(time.perf_counter() - start)
    return float(np.median(times[2:]))


def main():
    warnings.simplefilter("ignore")
    problems = []
    print(f"{'network':<40} {'exports':>7} {'late':>4} {'first s':>8} {'eager ms':>9} {'byoc ms':>9} {'ratio':>6}")
    for name, (make, inputs) in NETWORKS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        torch._dynamo.reset()
        byoc.torch.reset()
        network = make().eval()
        feeds = [inputs(call) for call in range(3)]
        with torch.no_grad():
            expected = network(*feeds[0])
            compiled = torch.compile(network, backend="byoc")
            start = time.perf_counter()
            found = compiled(*feeds[0])
            first = time.perf_counter() - start
            worst = difference(found, expected)
            for feed in feeds[1:] * 2:
                compiled(*feed)
            exports = len(byoc.torch.taken())
            eager, ours = median(network, feeds), median(compiled, feeds)
        late = len(byoc.torch.taken()) - exports
        times = f"{first:>8.1f} {1e3 * eager:>9.2f} {1e3 * ours:>9.2f} {ours / eager:>6.2f}"
        print(f"{name:<40} {exports:>7} {late:>4} {times}", flush=True)
        for reason in dict.fromkeys(byoc.torch.reasons()):
            print(f"    PyTorch keeps: {reason.splitlines()[0][:150]}")
        if worst > LIMIT:
            problems.append(f"{name}: results differ by {worst:.1e}")
        if late:
            problems.append(f"{name}: {late} exports after the fifth call")
        if ours > SLOWEST * eager:
            problems.append(f"{name}: {ours / eager:.2f} times as long as eager")
    for line in problems:
        print(line)
    sys.exit(1 if problems else 0)


main()
