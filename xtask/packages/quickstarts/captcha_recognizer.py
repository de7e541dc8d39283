# packages: captcha-recognizer==1.0.2 opencv-python-headless
import numpy as np
from captcha_recognizer.slider import Slider

picture = np.random.default_rng(0).integers(100, 156, (200, 340, 3), np.uint8)
picture[60:120, 200:260] = 40
slider = Slider()


def call():
    box, confidence = slider.identify(source=picture)
    return [[float(one) for one in box], float(confidence)]
