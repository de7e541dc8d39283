"""Tests of `torch.compile` and of PyTorch modules, run on demand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import byoc  # noqa: E402
import byoc.torch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def bert():  # noqa: ANN201
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                        vocab_size=100, max_position_embeddings=64)  # fmt: skip
    return BertModel(config), lambda n: {"input_ids": torch.randint(0, 100, (n, 12))}


def gpt2():  # noqa: ANN201
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64, use_cache=False)
    return GPT2Model(config), lambda n: {"input_ids": torch.randint(0, 100, (n, 12))}


def resnet18():  # noqa: ANN201
    from torchvision.models import resnet18

    return resnet18(), lambda n: {"x": torch.randn(n, 3, 64, 64)}


def first(result):  # noqa: ANN001, ANN201
    return result if isinstance(result, torch.Tensor) else result.last_hidden_state


def flops(call) -> int:  # noqa: ANN001
    """Returns the FLOPs of PyTorch's own operators during a call."""
    with torch.profiler.profile(with_flops=True) as profile:
        call()
    return sum(event.flops or 0 for event in profile.key_averages())


@pytest.fixture(autouse=True)
def fresh():  # noqa: ANN201
    torch.manual_seed(0)
    torch._dynamo.reset()
    byoc.torch.reset()


@pytest.mark.parametrize(("make", "share"), [(resnet18, 0.95), (bert, 0.9), (gpt2, 0.9)])
def test_networks(make, share: float) -> None:  # noqa: ANN001
    network, inputs = make()
    network.eval()
    x = inputs(2)
    with torch.no_grad():
        expected = first(network(**x))
        total = flops(lambda: network(**x))
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(network, backend="byoc")
        found = first(compiled(**x))
        assert byoc.torch.reasons() == []
        assert (found - expected).abs().max() <= 5e-4 * expected.abs().max()
        # The profiler counts only the operators that stay with PyTorch.
        assert total > 0 and 1 - flops(lambda: compiled(**x)) / total >= share
        assert not torch._dynamo.utils.counters["graph_break"]
        assert len(byoc.torch.taken()) == 1
        # A different batch size triggers one recompilation, with an open batch size.
        for n in (3, 5, 1, 4):
            x = inputs(n)
            expected = first(network(**x))
            found = first(compiled(**x))
            assert (found - expected).abs().max() <= 5e-4 * expected.abs().max()
        assert byoc.torch.reasons() == []


def test_weights_that_change() -> None:
    layer = torch.nn.Linear(4, 2).eval()
    compiled = torch.compile(layer, backend="byoc")
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)
        layer.weight.mul_(2)
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)


class Moving(torch.nn.Module):
    """Network with a buffer that the program replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2 + self.shift


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("values", "most"), [("other", 3), ("equal", 1), ("two", 2)])
def test_a_weight_that_is_another_at_each_call_is_exported_no_more_than_needed(mode, values: str, most: int) -> None:  # noqa: ANN001
    network = Moving().eval()
    compiled = torch.compile(network, backend="byoc")
    x = torch.randn(5, 4)
    with mode():
        for call in range(8):
            fill = {"other": call, "equal": 1, "two": min(call, 1)}[values]
            network.shift = torch.full((3,), float(fill))
            assert torch.allclose(compiled(x), network(x), atol=1e-5)
    assert byoc.torch.reasons() == []
    assert 0 < len(byoc.torch.taken()) <= most
    # The weights that did not change stay constants.
    assert len(byoc.torch.taken()[-1]["model"].inputs) <= 2


def test_weights_that_change_in_place_at_each_call() -> None:
    layer = torch.nn.Linear(4, 2).eval()
    compiled = torch.compile(layer, backend="byoc")
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(6):
            layer.weight.add_(1)
            assert torch.allclose(compiled(x), layer(x), atol=1e-5)
    assert len(byoc.torch.taken()) == 3


def test_sizes_cost_one_export() -> None:
    network = Moving().eval()
    compiled = torch.compile(network, backend="byoc")
    with torch.no_grad():
        for size in (2, 3, 4, 5, 9):
            x = torch.randn(size, 4)
            assert torch.allclose(compiled(x), network(x), atol=1e-5)
    # One for the first size, one for all others.
    assert len(byoc.torch.taken()) == 2


def test_gradients_stay_with_pytorch() -> None:
    layer = torch.nn.Linear(4, 2)
    compiled = torch.compile(layer, backend="byoc")
    compiled(torch.randn(3, 4)).sum().backward()
    assert layer.weight.grad is not None
    assert "gradients are enabled" in byoc.torch.reasons()[0]


def test_what_byoc_lacks_stays_with_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x @ x.T)

    x = torch.randn(4, 4)
    with torch.no_grad():
        assert torch.allclose(torch.compile(function, backend="byoc")(x), function(x), atol=1e-4)
    assert byoc.torch.reasons()


class Around(torch.nn.Module):
    """Network with one operator that cannot be exported, between layers that can."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.before(x))
        values = torch.linalg.eigvalsh(h.transpose(-1, -2) @ h)
        return torch.softmax(self.after(self.norm(h + values)), dim=-1)


def test_a_graph_is_divided_around_an_operator() -> None:
    network = Around().eval()
    compiled = torch.compile(network, backend="byoc")
    x = torch.randn(5, 8)
    with torch.no_grad():
        total = flops(lambda: network(x))
        assert torch.allclose(compiled(x), network(x), atol=1e-5)
        assert len(byoc.torch.taken()) == 2
        reasons = byoc.torch.reasons()
        assert len(reasons) == 1 and "eigvalsh" in reasons[0], reasons
        # The layers before and after the unsupported operator run in byoc.
        assert total > 0 and flops(lambda: compiled(x)) == 0
        # A different batch size, and different weights.
        for n in (3, 6):
            x = torch.randn(n, 8)
            assert torch.allclose(compiled(x), network(x), atol=1e-5)
        network.after.weight.mul_(2)
        assert torch.allclose(compiled(x), network(x), atol=1e-5)
        assert not any("eigvalsh" not in reason for reason in byoc.torch.reasons())


@torch.library.custom_op("byoc_tests::reversed_rows", mutates_args=())
def reversed_rows(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).clone()


@reversed_rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operators_stay_with_pytorch() -> None:
    weight = torch.randn(4, 4)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(x @ weight)
        a, b = torch.split(reversed_rows(h), 2, dim=1)
        return (a + 1) * b, h.sum(dim=1)

    compiled = torch.compile(function, backend="byoc")
    x = torch.randn(6, 4)
    with torch.no_grad():
        for found, expected in zip(compiled(x), function(x)):
            assert torch.allclose(found, expected, atol=1e-5)
    assert [reason for reason in byoc.torch.reasons() if "reversed_rows" in reason]
    assert sum(part["operators"] for part in byoc.torch.taken()) >= 4


def test_changes_in_place() -> None:
    """Checks that a graph is not partitioned if an operator modifies in place a tensor that others read."""

    def harmless(x: torch.Tensor) -> torch.Tensor:
        return reversed_rows(torch.nn.functional.relu(x + 1, inplace=True)) * 2

    def shared(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        reversed_rows(y[0:1]).add_(1)
        y[0].mul_(3)
        return reversed_rows(y) + y

    x = torch.randn(3, 2)
    for function, parts in ((harmless, 1), (shared, 0)):
        byoc.torch.reset()
        torch._dynamo.reset()
        with torch.no_grad():
            assert torch.allclose(torch.compile(function, backend="byoc")(x), function(x), atol=1e-5)
        assert (len(byoc.torch.taken()) > 0) is (parts > 0), byoc.torch.reasons()


def test_graphs_of_nothing_but_such_operators() -> None:
    compiled = torch.compile(lambda x: reversed_rows(reversed_rows(x)), backend="byoc")
    x = torch.randn(3, 2)
    with torch.no_grad():
        assert (compiled(x) == x).all()
    assert byoc.torch.taken() == []
    assert any("reversed_rows" in reason for reason in byoc.torch.reasons())


def test_module() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    model = byoc.compile(layer, (x,))
    assert np.abs(model(x) - layer(x).detach().numpy()).max() < 1e-5
    with pytest.raises(TypeError, match="example_inputs"):
        byoc.compile(layer)


def test_tensors() -> None:
    layer = torch.nn.ReLU()
    model = byoc.compile(layer, (torch.randn(2, 3),))
    x = torch.randn(2, 3)
    assert (torch.from_dlpack(model(x)) == x.clamp(min=0)).all()
    assert (torch.from_dlpack(model(x.T.contiguous().T)) == x.clamp(min=0)).all()
    with pytest.raises((byoc.InputError, BufferError)):
        model(torch.randn(2, 3, requires_grad=True))
