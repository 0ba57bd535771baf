"""Estimates the core seconds and disk space of commands.

The rates were measured on one core of an Intel Xeon at 2.1 GHz with AVX-512, most of them on
Wikipedia's paragraphs of 84 words. The work of GPUs is counted in `Step.flop`.
"""

VECTOR = 768  # numbers
_PRODUCTS = (
    45e9  # operations a second of exact search: 91e9 for 200 results a query, 38e9 for 1,000
)
_INDEXED_WORD = 1.0e-6  # seconds, of BM25's index
_LEXICAL_SCORE = 5.3e-9  # seconds, of a query and a passage
_CHARACTER = 0.31e-6  # seconds, tokenized into spans (benchmarks/README.md)
_MATCHED_CHARACTER = 0.05e-6  # seconds, of a passage in which answers are looked for
_RESULT_READ, _RESULT_WRITTEN = 2.3e-6, 0.8e-6  # seconds, of a run
_TRIPLE = 3.1e-6  # seconds
_RESULT_BYTES = 45
TOKEN_BYTES = 3.1  # in a store: the id, where words start, and 8 for each span of 128
_CHARACTERS_PER_TOKEN = 4.5
# BERT-base, 110 million float32 parameters; a checkpoint has Adam's two moments too.
MODEL_BYTES = 0.44e9
TRAINING_BYTES = 3 * 3 * MODEL_BYTES  # of `finetune`: two checkpoints and one in the making
CHECKPOINT_BYTES = 1.5e9  # of pre-training, with a Condenser head of two layers
PRETRAINING_BYTES = 3 * CHECKPOINT_BYTES + 0.5e9  # the last two, the best, the exported folder
_STORED_ROW = 45  # bytes beside the text: an id, twice, a place, and what SQLite adds
_STORED_NEGATIVE = 10.5


def exact_search(n_queries: float, n_vectors: float) -> float:
    """Returns the core seconds of an exact search."""
    return 2 * VECTOR * n_queries * n_vectors / _PRODUCTS


def bm25(n_queries: float, n_passages: float, words: float) -> float:
    """Returns the core seconds to index passages of `words` words, and to rank them."""
    return n_passages * (words * _INDEXED_WORD + n_queries * _LEXICAL_SCORE)


def tokenizing(characters: float) -> float:
    """Returns the core seconds to make a token store of a text."""
    return characters * _CHARACTER


def store_bytes(characters: float) -> float:
    """Returns the bytes of a token store of a text."""
    return characters / _CHARACTERS_PER_TOKEN * TOKEN_BYTES


def stored_bytes(n_passages: float, characters: float, n_negatives: float) -> float:
    """Returns the bytes of `finetune.stored`, which a run deletes at its end."""
    return n_passages * (characters + _STORED_ROW) + _STORED_NEGATIVE * n_negatives


def mining(n_read: float, n_written: float) -> float:
    """Returns the core seconds to read and write results of runs."""
    return n_read * _RESULT_READ + n_written * _RESULT_WRITTEN


def matching(characters: float) -> float:
    """Returns the core seconds to look for answers in passages."""
    return characters * _MATCHED_CHARACTER


def drawing(n_triples: float) -> float:
    """Returns the core seconds to draw negatives from triples."""
    return n_triples * _TRIPLE


def run_bytes(n_results: float) -> float:
    """Returns the bytes of a run."""
    return n_results * _RESULT_BYTES


def embeddings_bytes(n_passages: float, characters: float) -> float:
    """Returns the bytes of float16 embeddings, with passages of `characters` characters."""
    return n_passages * (2 * VECTOR + characters)
