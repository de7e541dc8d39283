import os

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"))
image = np.load(os.path.join(FOLDER, "digits.npz"))["image"]
binding = session.io_binding()
x = ort.OrtValue.ortvalue_from_numpy(image)
y = ort.OrtValue.ortvalue_from_shape_and_type([3, 10], np.float32)
binding.bind_input("image", x.device_name(), 0, np.float32, x.shape(), x.data_ptr())
binding.bind_output("logits", y.device_name(), 0, np.float32, y.shape(), y.data_ptr())
for _ in range(3):
    session.run_with_iobinding(binding)
print(np.round(y.numpy(), 3).tolist())
x.update_inplace(image[::-1].copy())
session.run_with_iobinding(binding)
print(np.round(binding.copy_outputs_to_cpu()[0], 3).tolist())
