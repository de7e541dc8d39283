# packages: rapidocr-onnxruntime==1.4.4 pillow
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

image = Image.new("RGB", (480, 160), "white")
draw = ImageDraw.Draw(image)
draw.text((20, 20), "Quick start 2024", "black", ImageFont.load_default(40))
draw.text((20, 90), "second line: 3.14", "black", ImageFont.load_default(32))
engine, pixels = RapidOCR(), np.asarray(image)


def call():
    result, _ = engine(pixels)
    return [[box, text, float(score)] for box, text, score in result]
