import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"))
print(session.get_inputs()[0].shape)
rng = np.random.default_rng(0)
for batch in (1, 2, 5, 0, 3):
    logits = session.run(None, {"image": rng.random((batch, 1, 8, 8), np.float32)})[0]
    print(logits.shape, np.round(logits.sum(), 2))
