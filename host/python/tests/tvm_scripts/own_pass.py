"""A pass of one's own, as a function and as a class, with instruments."""

import tvm
from tvm import relay


@relay.transform.function_pass(opt_level=1)
class RewriteTo:
    def __init__(self, operator):
        self.operator = operator

    def transform_function(self, func, mod, ctx):
        operator = self.operator

        class Mutator(relay.ExprMutator):
            def visit_call(self, call):
                new = super().visit_call(call)
                if new.op == relay.op.get("nn.relu"):
                    return relay.Call(relay.op.get(operator), new.args)
                return new

        return Mutator().visit(func)


@tvm.transform.module_pass(opt_level=2, name="CountCalls")
def count_calls(mod, ctx):
    counts = relay.analysis.list_op_freqs(mod)
    print("calls", counts)
    return mod.with_attr("calls", sum(counts.values()))


x = relay.var("x", shape=(2, 3))
mod = tvm.IRModule.from_expr(relay.nn.relu(relay.add(relay.nn.relu(x), x)))
timing = tvm.ir.instrument.PassTimingInstrument()
with tvm.transform.PassContext(opt_level=3, instruments=[timing]):
    mod = tvm.transform.Sequential([RewriteTo("tanh"), count_calls])(mod)
    assert "RewriteTo" in timing.render()
assert mod.get_attr("calls") == 3
assert relay.analysis.list_op_freqs(mod) == {"add": 1, "tanh": 2}
with tvm.transform.PassContext(opt_level=0):
    kept = tvm.transform.Sequential([RewriteTo("exp")])(mod)
assert relay.analysis.list_op_freqs(kept) == {"add": 1, "tanh": 2}
