import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"))
for image in (np.zeros((8, 8), np.float32), np.zeros((1, 1, 9, 8), np.float32), np.zeros((1, 1, 8, 8), np.float64)):
    try:
        session.run(None, {"image": image})
    except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
        print(error)
