"""The plugin ccompiler gets a multiplication; its source is printed."""

import numpy as np
import tvm
from tvm import relay

x = relay.var("x", shape=(10, 10))
y = relay.var("y", shape=(10, 10))
mod = tvm.IRModule.from_expr(relay.Function([x, y], relay.multiply(x, y)))
mod = relay.op.contrib.partition_for_ccompiler(mod)
print(mod)
assert 'Compiler="ccompiler"' in str(mod)
lib = relay.build(mod, target="llvm")
print(lib.imported_modules[0].get_source())
assert lib.imported_modules[0].type_key == "c"
a, b = np.random.rand(10, 10).astype("float32"), np.random.rand(10, 10).astype("float32")
result = relay.create_executor("vm", mod=mod).evaluate()(a, b)
tvm.testing.assert_allclose(result.numpy(), a * b, rtol=1e-6)
