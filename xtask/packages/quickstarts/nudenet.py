# packages: nudenet==3.4.2 pillow
import numpy as np
from nudenet import NudeDetector

detector = NudeDetector()
picture = np.random.default_rng(0).integers(0, 256, (320, 320, 3), np.uint8)


def call():
    return detector.detect(picture)
