import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "words.onnx"), providers=["CPUExecutionProvider"])
for port in session.get_inputs() + session.get_outputs():
    print(port.name, port.type, port.shape)
words = np.array(["good", "bad", "unknown"])
label, probabilities, rest = session.run(["label", "probabilities", "rest"], {"words": words})
print(label.tolist(), label.dtype)
print([{name: round(share, 4) for name, share in row.items()} for row in probabilities])
print([part.tolist() for part in rest])
