# packages: text2tashkeel==0.1.0
from text2tashkeel import Diacritizer, available_models

diacritizers = [Diacritizer(name) for name in sorted(available_models(bundled_only=True))]


def call():
    return [one.diacritize("بسم الله الرحمن الرحيم") for one in diacritizers]
