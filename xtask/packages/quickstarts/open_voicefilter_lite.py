# packages: open-voicefilter-lite==0.2.0
import numpy as np
from voicefilter_lite import StreamingVoiceFilter

time = np.arange(2 * 16000) / 16000
voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20)).astype(np.float32) * 0.1


def call():
    found = StreamingVoiceFilter()
    found.set_enrollment(voice)
    return [np.asarray(found.step(voice[start : start + 160])) for start in range(0, 160 * 20, 160)]
