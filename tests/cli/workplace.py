"""What the tests of the command line work on: a small corpus, and settings for small models."""

import json
import lzma
import os
import random

from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer

# A folder of 200 bytes that begins with a dash and holds what libraries or shells take otherwise.
ODD_NAME = "-r [a]*?{b}\\'\"\n\x1b[2J $x%s;&|<~:,=@#é"
ODD_NAME += "x" * (200 - len(os.fsencode(ODD_NAME)))
WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()
# The README's pipeline at a size for tests: the same commands, with these settings added.
SMALLER = {
    "corpus": "--max_tokens=16",
    "pretrain": "--config.train.steps=3 --config.checkpoint.every=2"
    " --config.data.batch_size=16"
    " --config.data.length=16 --config.model.hidden_size=16 --config.model.intermediate_size=32"
    " --config.model.num_hidden_layers=2 --config.model.skip_from=1"
    " --config.model.max_position_embeddings=32 --config.model.num_attention_heads=2",
    "finetune": "--config.max_steps=2 --config.batch_size=4 --config.query_length=8"
    " --config.passage_length=16",
}


def make_workplace(folder):
    """Makes articles.jsonl.xz, a tokenizer, and a BEIR folder, which the README assumes."""
    rng = random.Random(1)
    texts = [" ".join(_sentence(rng) for _ in range(5)) for _ in range(40)]
    with lzma.open(folder / "articles.jsonl.xz", "wt") as file:
        file.writelines(json.dumps({"title": text[:9], "text": text}) + "\n" for text in texts)
    (folder / "bert-base-uncased").mkdir()
    save_tokenizer(train_tokenizer(texts, 80), folder / "bert-base-uncased")
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    with (data / "corpus.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": f"p{i}", "title": "", "text": text}) + "\n"
            for i, text in enumerate(texts)
        )
    with (data / "queries.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": f"q{i}", "text": text.split(".")[0]}) + "\n"
            for i, text in enumerate(texts)
        )
    for split, part in (("train", range(30)), ("test", range(30, 40))):
        judgments = "".join(f"q{i}\tp{i}\t1\n" for i in part)
        (data / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgments)
    return folder


def _sentence(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(8, 11))) + "."
