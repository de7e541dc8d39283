# packages: speechmos==0.0.1.1 librosa pandas
import numpy as np
from speechmos import dnsmos

time = np.arange(10 * 16000) / 16000
audio = (0.3 * np.sin(2 * np.pi * 200 * time) * (1 + np.sin(2 * np.pi * 3 * time)) / 2).astype(np.float32)


def call():
    found = dnsmos.run(audio, sr=16000)
    return {name: float(value) for name, value in found.items() if not isinstance(value, str)}
