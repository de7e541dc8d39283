# packages: vietcombank-captcha==0.1.0
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from vietcombank_captcha import VietcombankCaptcha

image = Image.new("RGB", (155, 50), "white")
ImageDraw.Draw(image).text((15, 5), "48215", "black", ImageFont.load_default(36))
predictor = VietcombankCaptcha()


def call():
    code, confidences = predictor.predict_with_confidence(image)
    return [code, np.asarray(confidences, np.float64)]
