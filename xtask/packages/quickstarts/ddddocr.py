# packages: ddddocr==1.6.1 pillow
import io

import ddddocr
from PIL import Image, ImageDraw, ImageFont

image = Image.new("RGB", (160, 60), "white")
ImageDraw.Draw(image).text((15, 10), "7x4K", "black", ImageFont.load_default(36))
file = io.BytesIO()
image.save(file, "PNG")
reader, finder = ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(det=True, show_ad=False)


def call():
    return [reader.classification(file.getvalue()), finder.detection(file.getvalue())]
