import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.inter_op_num_threads = 1
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"), sess_options=options)
images = np.random.default_rng(0).random((32, 1, 8, 8), np.float32)
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: session.run(None, {"image": images[i : i + 1]})[0][0], range(32)))
alone = session.run(None, {"image": images})[0]
print(np.allclose(found, alone, atol=1e-5), session.get_providers())
