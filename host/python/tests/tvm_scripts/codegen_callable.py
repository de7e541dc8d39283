"""A code generator in Python returns a function of arrays."""

import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor


@tvm.ir.register_op_attr("add", "target.numpy_chip")
@tvm.ir.register_op_attr("multiply", "target.numpy_chip")
def supported(expr):
    return True


@tvm.register_func("relay.ext.numpy_chip")
def codegen(func):
    operators = {"add": np.add, "multiply": np.multiply}
    calls = []
    relay.analysis.post_order_visit(func.body, lambda e: calls.append(e) if isinstance(e, relay.Call) else None)

    def run(*inputs):
        values = dict(zip(func.params, inputs))
        for call in calls:
            values[call] = operators[call.op.name](*[values[arg] for arg in call.args])
        return values[func.body]

    return run


x = relay.var("x", shape=(2, 3))
y = relay.var("y", shape=(2, 3))
mod = tvm.IRModule.from_expr(relay.Function([x, y], relay.exp((x + y) * y)))
mod = tvm.transform.Sequential(
    [
        relay.transform.AnnotateTarget("numpy_chip"),
        relay.transform.MergeCompilerRegions(),
        relay.transform.PartitionGraph(),
    ]
)(mod)
print(mod)
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target="llvm")
dev = tvm.cpu()
module = graph_executor.GraphModule(lib["default"](dev))
a, b = np.random.rand(2, 3).astype("float32"), np.random.rand(2, 3).astype("float32")
module.set_input("x", tvm.nd.array(a))
module.set_input("y", tvm.nd.array(b))
module.run()
tvm.testing.assert_allclose(module.get_output(0).numpy(), np.exp((a + b) * b), rtol=1e-5)
assert any(region["backend"] == "numpy_chip" for region in lib.explain().regions)
