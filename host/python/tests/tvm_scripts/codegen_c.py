"""A code generator in Python returns C source."""

import numpy as np
import tvm
from tvm import relay


@tvm.ir.register_op_attr("add", "target.c_chip")
@tvm.ir.register_op_attr("subtract", "target.c_chip")
def supported(expr):
    return True


class Emitter(relay.ExprVisitor):
    """Writes a loop for each operator."""

    def __init__(self, func):
        super().__init__()
        self.size = int(np.prod([int(d) for d in func.body.checked_type.shape]))
        self.names = {param: f"in{i}" for i, param in enumerate(func.params)}
        self.lines = []
        self.visit(func.body)
        self.result = self.names[func.body]

    def visit_call(self, call):
        super().visit_call(call)
        name = f"t{len(self.lines)}"
        sign = {"add": "+", "subtract": "-"}[call.op.name]
        left, right = (self.names[arg] for arg in call.args)
        self.lines.append(f"  for (int i = 0; i < {self.size}; i++) {name}[i] = {left}[i] {sign} {right}[i];")
        self.names[call] = name


@tvm.register_func("relay.ext.c_chip")
def codegen(func):
    emitter = Emitter(func)
    inputs = ", ".join(f"const float *in{i}" for i in range(len(func.params)))
    temporaries = "".join(f"  float t{i}[{emitter.size}];\n" for i in range(len(emitter.lines)))
    body = "\n".join(emitter.lines)
    copy = f"  for (int i = 0; i < {emitter.size}; i++) out[i] = {emitter.result}[i];"
    return f"void {func.attrs['global_symbol']}({inputs}, float *out) {{\n{temporaries}{body}\n{copy}\n}}\n"


x, y = relay.var("x", shape=(4, 5)), relay.var("y", shape=(4, 5))
mod = tvm.IRModule.from_expr(relay.Function([x, y], (x + y) - (x - y)))
for step in (
    relay.transform.AnnotateTarget("c_chip"),
    relay.transform.MergeCompilerRegions(),
    relay.transform.PartitionGraph(),
):
    mod = step(mod)
lib = relay.build(mod, target="c")
source = lib.get_lib().imported_modules[0].get_source()
assert "void tvmgen_default_c_chip_main_0(" in source
print(source)
a, b = np.random.rand(4, 5).astype("float32"), np.random.rand(4, 5).astype("float32")
module = tvm.contrib.graph_executor.GraphModule(lib["default"](tvm.cpu(0)))
module.run(x=a, y=b)
tvm.testing.assert_allclose(module.get_output(0).numpy(), (a + b) - (a - b), rtol=1e-6)

folder = tvm.contrib.utils.tempdir()
path = folder.relpath("lib.byoc")
lib.export_library(path)
again = tvm.contrib.graph_executor.GraphModule(tvm.runtime.load_module(path)["default"](tvm.cpu(0)))
again.run(x=a, y=b)
tvm.testing.assert_allclose(again.get_output(0).numpy(), (a + b) - (a - b), rtol=1e-6)
