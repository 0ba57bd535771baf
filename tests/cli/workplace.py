"""What the tests of the command line work on: a small corpus, and settings for small models."""

import json
import lzma
import os

from tests.world import TINY, as_flags, make_texts, write_beir, write_tokenizer

# A folder of 200 bytes that begins with a dash and holds what libraries or shells take otherwise.
ODD_NAME = "-r [a]*?{b}\\'\"\n\x1b[2J $x%s;&|<~:,=@#é"
ODD_NAME += "x" * (200 - len(os.fsencode(ODD_NAME)))
# The guide's pipeline at a size for tests: the same commands, with these settings added.
_SMALLER = {
    "corpus": "--max_length=16",
    "pretrain": " ".join(as_flags({"train.steps": 3, "checkpoint.every": 2, **TINY})),
    "finetune": "--config.train.max_steps=2 --config.data.batch_size=4"
    " --config.model.query_length=8 --config.model.passage_length=16",
}


def smaller(command):
    """Returns the words that make a command small."""
    return _SMALLER.get(command, "").split()


def make_workplace(folder):
    """Makes articles.jsonl.xz, a tokenizer, and a BEIR folder, which the guide assumes."""
    texts = make_texts(40, n_sentences=5, seed=1)
    with lzma.open(folder / "articles.jsonl.xz", "wt") as file:
        file.writelines(json.dumps({"title": text[:9], "text": text}) + "\n" for text in texts)
    write_tokenizer(folder / "bert-base-uncased", texts)
    queries = [text.split(".")[0] for text in texts]
    write_beir(folder / "data", texts, queries, {"train": range(30), "test": range(30, 40)})
    return folder
