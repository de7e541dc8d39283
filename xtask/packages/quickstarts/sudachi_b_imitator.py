# packages: sudachi-b-imitator==0.2.1
from sudachi_b_imitator import Tokenizer

tokenizer = Tokenizer()


def call():
    return [vars(token) if hasattr(token, "__dict__") else str(token) for token in tokenizer.tokenize("今日は天気が良いので散歩に行きます。")]
