# packages: captcha-whisperer==0.1.0
import io

import captcha_whisperer
from PIL import Image, ImageDraw, ImageFont

image = Image.new("RGB", (160, 60), "white")
ImageDraw.Draw(image).text((20, 8), "2CWK", "black", ImageFont.load_default(40))
file = io.BytesIO()
image.save(file, "PNG")


def call():
    return captcha_whisperer.recognize(file.getvalue())
