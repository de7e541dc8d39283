"""Rules for operators and rules for patterns, with checks, decide what a target takes."""

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard
from tvm.relay.op.contrib.register import get_pattern_table, register_pattern_table


@tvm.ir.register_op_attr("add", "target.looper")
def add(expr):
    return expr.args[0].checked_type.dtype == "float32"


@tvm.ir.register_op_attr("nn.relu", "target.looper")
def relu(expr):
    return True


@register_pattern_table("looper")
def table():
    def has_unit_stride(call):
        return all(int(stride) == 1 for stride in call.attrs.strides)

    return [("looper.conv2d", is_op("nn.conv2d")(wildcard(), is_constant()), has_unit_stride)]


def network(stride):
    data = relay.var("data", shape=(1, 2, 8, 8))
    weight = relay.const(tvm.nd.array([[[[1.0]], [[2.0]]]]).numpy().astype("float32").reshape(1, 2, 1, 1))
    conv = relay.nn.conv2d(data, weight, strides=(stride, stride), kernel_size=(1, 1), channels=1)
    return tvm.IRModule.from_expr(relay.Function([data], relay.nn.relu(relay.add(conv, conv))))


passes = tvm.transform.Sequential(
    [
        relay.transform.MergeComposite(get_pattern_table("looper")),
        relay.transform.AnnotateTarget(["looper"]),
        relay.transform.MergeCompilerRegions(),
        relay.transform.PartitionGraph(),
    ]
)
for stride, composites in ((1, 1), (2, 0)):
    mod = passes(network(stride))
    text = str(mod)
    assert text.count('Compiler="looper"') == 1, text
    assert text.count('Composite="looper.conv2d"') == composites, text
    print("stride", stride, "composites", composites)
