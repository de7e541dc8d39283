"""A quantized convolution for the plugin vta."""

import numpy as np
import tvm
from tvm import relay

rng = np.random.RandomState(0)
data = relay.var("data", shape=(1, 16, 8, 8), dtype="int8")
weight = relay.const(rng.randint(-8, 8, (16, 16, 3, 3)).astype("int8"))
conv = relay.qnn.op.conv2d(
    data,
    weight,
    relay.const(0),
    relay.const(0),
    relay.const(0.5),
    relay.const(0.25),
    kernel_size=(3, 3),
    channels=16,
    padding=(1, 1),
)
out = relay.qnn.op.requantize(conv, relay.const(0.125), relay.const(0), relay.const(4.0), relay.const(0))
mod = tvm.IRModule.from_expr(relay.Function([data], out))
partitioned = relay.op.contrib.partition_for_vta(mod)
print(partitioned)
value = rng.randint(-8, 8, (1, 16, 8, 8)).astype("int8")
plain = relay.create_executor("graph", mod=mod).evaluate()(value).numpy()
offloaded = relay.create_executor("graph", mod=partitioned).evaluate()(value).numpy()
assert np.abs(plain.astype(int) - offloaded.astype(int)).max() <= 1
assert 'Compiler="vta"' in str(partitioned)
