# packages: arabic-name-romanizer==0.2.0
from arabic_name_romanizer import transliterate


def call():
    found = transliterate("حبيبة زقزوقشن", top_k=3)
    return [[one.text, one.score] for one in found]
