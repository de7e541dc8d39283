"""A rewrite callback replaces a batch normalization that is written out."""

import numpy as np
import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import DFPatternCallback, is_constant, is_op, rewrite, wildcard


class BatchNorm(DFPatternCallback):
    def __init__(self):
        super().__init__()
        self.x, self.mean, self.var, self.gamma, self.beta = (wildcard() for _ in range(5))
        self.eps = is_constant()
        deviation = is_op("sqrt")(self.var + self.eps)
        self.pattern = self.gamma * (self.x - self.mean) / deviation + self.beta

    def callback(self, pre, post, node_map):
        x, gamma, beta, mean, var = (node_map[p][0] for p in (self.x, self.gamma, self.beta, self.mean, self.var))
        epsilon = node_map[self.eps][0].data.numpy().item()
        return relay.nn.batch_norm(x, gamma, beta, mean, var, epsilon=epsilon)[0]


x = relay.var("x", shape=(1, 4))
mean, var, gamma, beta = (relay.var(name, shape=(4,)) for name in ("mean", "var", "gamma", "beta"))
written = gamma * (x - mean) / relay.sqrt(var + relay.const(1e-3)) + beta
normalized = rewrite(BatchNorm(), written)
expected = relay.nn.batch_norm(x, gamma, beta, mean, var, epsilon=1e-3)[0]
assert tvm.ir.structural_equal(normalized, expected)
print(normalized)

arrays = [np.random.rand(*shape).astype("float32") + 1 for shape in ((1, 4), (4,), (4,), (4,), (4,))]
params = [x, mean, var, gamma, beta]
results = []
for body in (written, normalized):
    run = relay.create_executor("graph", mod=tvm.IRModule.from_expr(relay.Function(params, body))).evaluate()
    results.append(run(*arrays).numpy())
tvm.testing.assert_allclose(results[0], results[1], rtol=1e-5)
