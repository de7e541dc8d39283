# packages: faster-whisper==1.2.1
import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps

random = np.random.default_rng(0)
time = np.arange(3 * 16000) / 16000
voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20)) * (1 + np.sin(2 * np.pi * 4 * time))
audio = (0.1 * voice * (np.abs(time - 1.5) < 1) + 0.001 * random.standard_normal(len(time))).astype(np.float32)


def call():
    return get_speech_timestamps(audio, VadOptions(threshold=0.2))
