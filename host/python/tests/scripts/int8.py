import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "int8.onnx"), None, ["CPUExecutionProvider"])
x = np.array([[-128, -1, 3, 127], [0, 1, 2, 4]], np.int8)
y = session.run(None, {"x": x})[0]
print(session.get_inputs()[0].type, y.dtype, y.tolist())
