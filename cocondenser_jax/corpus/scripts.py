"""Tells which characters belong to scripts without spaces between words."""

import re

# Unicode's blocks of scripts without spaces: Thai to Burmese, Khmer, East Asian (without Hangul),
# their compatibility characters, rarer ideographs.
UNSPACED_BLOCKS = r"\u0E00-\u109F\u1780-\u17FF\u2E80-\uA4CF\uF900-\uFAFF\U00020000-\U0003FFFF"
UNSPACED = re.compile(f"[{UNSPACED_BLOCKS}]")  # one character
