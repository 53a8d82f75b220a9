"""BERT's uncased WordPiece over a vocab.txt, in a page: no dependency."""

from __future__ import annotations

import unicodedata


def _is_punctuation(char: str) -> bool:
    return (not char.isalnum() and char.isascii() and char > " ") or \
        unicodedata.category(char).startswith("P")


def _is_cjk(char: str) -> bool:
    code = ord(char)
    return 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or \
        0x20000 <= code <= 0x2FA1F or 0xF900 <= code <= 0xFAFF


def _words(text: str) -> list[str]:
    spaced = []
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn" or (category in ("Cc", "Cf") and
                                char not in "\t\n\r"):
            continue
        if _is_punctuation(char) or _is_cjk(char):
            char = f" {char} "
        spaced.append(char)
    return "".join(spaced).split()


class WordPiece:
    def __init__(self, vocab_path: str) -> None:
        with open(vocab_path, encoding="utf-8") as file:
            tokens = file.read().splitlines()
        self._ids = {token: number for number, token in enumerate(tokens)}

    def encode(self, text: str, limit: int = 256) -> list[int]:
        """The ids of [CLS] text [SEP], at most `limit` of them."""
        ids = [self._ids["[CLS]"]]
        for word in _words(text):
            ids += self._pieces(word)
        return ids[:limit - 1] + [self._ids["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        found, start = [], 0
        if len(word) > 100:
            return [self._ids["[UNK]"]]
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self._ids:
                    found.append(self._ids[piece])
                    start = end
                    break
            else:
                return [self._ids["[UNK]"]]
        return found
