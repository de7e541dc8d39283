# packages: silero-vad==6.2.3
import numpy as np
import torch
from silero_vad import get_speech_timestamps, load_silero_vad

random = np.random.default_rng(0)
time = np.arange(3 * 16000) / 16000
voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20)) * (1 + np.sin(2 * np.pi * 4 * time))
samples = 0.1 * voice * (np.abs(time - 1.5) < 1) + 0.001 * random.standard_normal(len(time))
audio = torch.from_numpy(samples.astype(np.float32))
model = load_silero_vad(onnx=True)


def call():
    model.reset_states()
    chunks = [float(model(audio[start : start + 512], 16000)) for start in range(0, 512 * 60, 512)]
    return [chunks, get_speech_timestamps(audio, model, threshold=0.2)]
