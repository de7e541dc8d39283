"""Two targets in order of priority; the second takes what the first leaves."""

import tvm
from tvm import relay
from tvm.relay.op.annotation import compiler_begin, compiler_end

for target, operators in (("first", ("nn.dense", "nn.relu")), ("second", ("nn.relu", "add"))):
    for operator in operators:
        tvm.ir.register_op_attr(operator, f"target.{target}", lambda expr: True)

x = relay.var("x", shape=(1, 8))
weight = relay.var("weight")
dense = relay.nn.dense(x, weight, units=8)
mod = tvm.IRModule.from_expr(relay.Function([x, weight], relay.add(relay.nn.relu(dense), x)))
mod = relay.transform.InferType()(mod)
assert mod["main"].params[1].checked_type == relay.TensorType((8, 8), "float32")
annotated = relay.transform.AnnotateTarget(["first", "second"])(mod)
print(annotated)

x2, weight2 = relay.var("x", shape=(1, 8)), relay.var("weight", shape=(8, 8))
first = relay.nn.dense(compiler_begin(x2, "first"), compiler_begin(weight2, "first"), units=8)
second = relay.nn.relu(compiler_begin(compiler_end(first, "first"), "first"))
third = relay.add(compiler_begin(compiler_end(second, "first"), "second"), compiler_begin(x2, "second"))
expected = tvm.IRModule.from_expr(relay.Function([x2, weight2], compiler_end(third, "second")))
tvm.ir.assert_structural_equal(annotated, relay.transform.InferType()(expected))

mod = relay.transform.PartitionGraph(mod_name="net")(relay.transform.MergeCompilerRegions()(annotated))
names = [var.name_hint for var in mod.get_global_vars()]
assert len(names) == 3 and names[1].startswith("tvmgen_net_first_main_") and "second" in names[2], names
