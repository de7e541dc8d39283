import json
import os

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = os.path.join(FOLDER, "profile")
session = ort.InferenceSession(os.path.join(FOLDER, "digits.onnx"), options)
image = np.load(os.path.join(FOLDER, "digits.npz"))["image"]
for _ in range(4):
    session.run(None, {"image": image})
with open(session.end_profiling()) as file:
    events = json.load(file)
runs = [event for event in events if event["name"] == "model_run"]
print(len(runs), all(run["dur"] >= 0 for run in runs))
kernels = {event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")}
print("Conv" in kernels or "FusedConv" in kernels, {event["ph"] for event in events})
