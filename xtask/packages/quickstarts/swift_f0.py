# packages: swift-f0==0.3.0
import numpy as np
from swift_f0 import SwiftF0

time = np.arange(16000) / 16000
audio = sum(np.sin(2 * np.pi * 220 * k * time) / k for k in range(1, 8)).astype(np.float32) / 3
detector = SwiftF0()


def call():
    found = detector.detect(audio, 16000)
    return [found.pitch_hz, found.confidence, found.loudness_db]
