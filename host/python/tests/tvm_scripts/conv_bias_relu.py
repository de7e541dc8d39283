"""A convolution, a bias and a relu become one composite of a target; the module is printed after each pass."""

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

data = relay.var("data", shape=(1, 3, 8, 8))
weight = relay.var("weight", shape=(4, 3, 3, 3))
bias = relay.var("bias", shape=(4,))
conv = relay.nn.conv2d(data, weight, kernel_size=(3, 3), channels=4, padding=(1, 1))
out = relay.nn.relu(relay.nn.bias_add(conv, bias))
mod = tvm.IRModule.from_expr(relay.Function([data, weight, bias], out))

pattern = is_op("nn.relu")(is_op("nn.bias_add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard()))
passes = [
    relay.transform.InferType(),
    relay.transform.MergeComposite([("mychip.conv2d_bias_relu", pattern)]),
    relay.transform.AnnotateTarget("mychip"),
    relay.transform.MergeCompilerRegions(),
    relay.transform.PartitionGraph(),
]
for step in passes:
    mod = step(mod)
    print("after", step.info.name)
    print(mod)

regions = [f for f in mod.functions.values() if "Compiler" in f.attrs.keys()]
assert len(regions) == 1 and regions[0].attrs["Compiler"] == "mychip"
composite = regions[0].body.op
assert composite.attrs["Composite"] == "mychip.conv2d_bias_relu"
assert isinstance(composite, relay.Function) and composite.body.op.name == "nn.relu"

x = relay.var("x", shape=(1, 3, 8, 8))
w = relay.var("w", shape=(4, 3, 3, 3))
b = relay.var("b", shape=(4,))
inner = relay.nn.relu(relay.nn.bias_add(relay.nn.conv2d(x, w, kernel_size=(3, 3), channels=4, padding=(1, 1)), b))
expected = relay.Function([x, w, b], inner).with_attr(
    {"Composite": "mychip.conv2d_bias_relu", "PartitionedFromPattern": "nn.conv2d_nn.bias_add_nn.relu_"}
)
tvm.ir.assert_structural_equal(composite, relay.transform.InferType()(tvm.IRModule.from_expr(expected))["main"])
print("composites:", len(regions))
