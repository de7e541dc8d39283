# packages: livekit-plugins-silero==1.8.9
import numpy as np
from livekit.plugins.silero import onnx_model

session = onnx_model.new_inference_session(True)
random = np.random.default_rng(0)


def call():
    model = onnx_model.OnnxModel(onnx_session=session, sample_rate=16000)
    random = np.random.default_rng(0)
    return [float(model(random.standard_normal(512).astype(np.float32) * 0.1)) for _ in range(40)]
