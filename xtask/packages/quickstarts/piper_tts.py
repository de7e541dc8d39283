# packages: piper-tts==1.8.0
from piper.tashkeel import TashkeelDiacritizer

diacritizer = TashkeelDiacritizer()


def call():
    return diacritizer("مرحبا بالعالم هذا نص قصير")
