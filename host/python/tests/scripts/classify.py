import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"), providers=["CPUExecutionProvider"])
image = np.load(os.path.join(FOLDER, "digits.npz"))["image"]
input_name = session.get_inputs()[0].name
output_name = session.get_outputs()[0].name
logits = session.run([output_name], {input_name: image})[0]
print(input_name, output_name, logits.shape, logits.dtype)
print(np.argmax(logits, axis=1).tolist())
print(np.round(logits, 3).tolist())
