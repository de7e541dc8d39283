"""Lets, branches and recursion, built with a ScopeBuilder and run by the virtual machine."""

import numpy as np
import tvm
from tvm import relay

total = relay.GlobalVar("total")
count = relay.var("count", shape=(), dtype="int32")
value = relay.var("value", shape=(), dtype="float32")
builder = relay.ScopeBuilder()
with builder.if_scope(relay.equal(count, relay.const(0))):
    builder.ret(value)
with builder.else_scope():
    doubled = builder.let("doubled", relay.add(value, value))
    builder.ret(relay.Call(total, [relay.subtract(count, relay.const(1)), doubled]))
mod = tvm.IRModule()
mod[total] = relay.Function([count, value], builder.get(), relay.scalar_type("float32"))
n, v = relay.var("n", shape=(), dtype="int32"), relay.var("v", shape=(), dtype="float32")
mod["main"] = relay.Function([n, v], relay.Call(total, [n, v]))
mod = relay.transform.InferType()(mod)
print(mod)
assert tvm.ir.structural_equal(relay.parse(mod.astext()), mod)
result = relay.create_executor("vm", mod=mod).evaluate()(np.int32(5), np.float32(1.5))
tvm.testing.assert_allclose(result.numpy(), 48.0)
