import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"))
image = np.zeros((1, 1, 8, 8), np.float32)
for outputs, feed in (
    (None, {"input": image}),
    (["probabilities"], {"image": image}),
    (None, {"image": image, "b": image}),
):
    try:
        session.run(outputs, feed)
    except Exception as error:
        print(type(error).__name__, error)
