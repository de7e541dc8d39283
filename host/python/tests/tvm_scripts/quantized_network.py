"""A quantized ONNX network for the plugin nuc_fpga."""

import sys

import numpy as np
import tvm
from tvm import relay

with open(sys.argv[1], "rb") as file:
    mod, params = relay.frontend.from_onnx(file.read(), shape={"image": (1, 1, 8, 8)})
partitioned = relay.op.contrib.partition_for_nuc_fpga(mod, params)
regions = [name for name in partitioned.get_global_vars() if "nuc_fpga" in name.name_hint]
print("regions", len(regions))
image = np.random.RandomState(0).rand(1, 1, 8, 8).astype("float32")
lib = relay.build(partitioned, target="llvm")
module = tvm.contrib.graph_executor.GraphModule(lib["default"](tvm.cpu()))
name = module.get_input_info()[0].popitem()[0]
module.set_input(name, image)
module.run()
first = module.get_output(0).numpy()
plain = relay.build(mod, target="llvm", params=params)
reference = tvm.contrib.graph_executor.GraphModule(plain["default"](tvm.cpu()))
reference.set_input(name, image)
reference.run()
assert np.abs(first - reference.get_output(0).numpy()).max() < 0.5
print(module.benchmark(tvm.cpu(), repeat=1, number=2))
