import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "half.onnx"))
print(session.get_inputs()[0].type)
x = np.arange(8, dtype=np.float16).reshape(2, 4) / 8
y = session.run(["y"], {"x": x})[0]
print(y.dtype, y.shape, np.round(y.astype(np.float32), 1).tolist())
