# packages: magika==1.0.3
from magika import Magika

magika = Magika()
FILES = [
    b"import os\n\ndef main():\n    print(os.getcwd())\n" * 9, b"<html><body><p>text</p></body></html>" * 5,
    bytes(range(256)) * 9,
]  # fmt: skip


def call():
    found = [magika.identify_bytes(file) for file in FILES]
    return [[one.output.label, one.score] for one in found]
