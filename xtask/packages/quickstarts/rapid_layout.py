# packages: rapid-layout==1.2.1 pillow
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapid_layout import RapidLayout

image = Image.new("RGB", (600, 800), "white")
draw = ImageDraw.Draw(image)
for line in range(20):
    draw.text((40, 40 + 32 * line), "A line of a paragraph in a page", "black", ImageFont.load_default(24))
engine, pixels = RapidLayout(), np.asarray(image)


def call():
    found = engine(pixels)
    return [found.boxes, found.class_names, found.scores]
