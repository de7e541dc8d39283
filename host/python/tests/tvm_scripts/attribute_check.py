"""A pattern with conditions on attributes, types and shapes."""

import tvm  # noqa: F401
from tvm import relay
from tvm.relay.dataflow_pattern import has_shape, is_op, wildcard

x = relay.var("x", shape=(1, 4, 8, 8))
w = relay.var("w", shape=(4, 1, 3, 3))
depthwise = relay.nn.conv2d(x, w, groups=4, channels=4, kernel_size=(3, 3))
conv = is_op("nn.conv2d")(wildcard(), wildcard())
assert conv.has_attr({"groups": 4}).match(depthwise)
assert not conv.has_attr({"groups": 1}).match(depthwise)
assert conv.has_attr({"kernel_size": [3, 3], "data_layout": "NCHW"}).match(depthwise)
assert conv.has_dtype("float32").match(depthwise)
assert not conv.has_dtype("int8").match(depthwise)
assert has_shape((1, 4, 6, 6), conv).match(depthwise)

relu_or_not = conv.optional(lambda inner: is_op("nn.relu")(inner))
assert relu_or_not.match(relay.nn.relu(depthwise)) and relu_or_not.match(depthwise)
chosen = conv.has_attr({"groups": 4}).partition(relay.nn.relu(depthwise), {"Composite": "chip.depthwise"})
assert chosen.args[0].op.attrs["Composite"] == "chip.depthwise"
unchanged = conv.partition(depthwise, check=lambda call: int(call.attrs.groups) == 1)
assert unchanged == depthwise
print(chosen)
