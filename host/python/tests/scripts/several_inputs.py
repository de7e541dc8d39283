import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "bert_small.onnx"))
inputs = dict(np.load(os.path.join(FOLDER, "bert_small.npz")))
for node in session.get_inputs():
    print(node.name, node.shape, node.type)
outputs = session.run(None, inputs)
for node, value in zip(session.get_outputs(), outputs):
    print(node.name, value.shape, value.dtype, np.round(float(np.abs(value).mean()), 3))
