"""A small collection: a BEIR folder of invented words, a tokenizer, small random models."""

import numpy as np
import pyarrow.ipc
import pytest

from tests.world import write_qrels, write_records

LETTERS = "abcdefgh"
N_PASSAGES, N_QUERIES = 60, 24


@pytest.fixture(scope="session")
def words():
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list(LETTERS), 5)) for _ in range(120)]


def read_shard(path):
    """Reads a file of embeddings: vectors, and rows of id, title and text."""
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all()
    columns = table.to_pydict()
    vectors_NxD = np.array(columns["vector"], table["vector"].type.value_type.to_pandas_dtype())
    return vectors_NxD, list(zip(columns["id"], columns["title"], columns["text"], strict=True))


def read_vectors(folder):
    """Reads the vectors of all shards in a folder."""
    return np.concatenate([read_shard(p)[0] for p in sorted(folder.glob("embeddings-*.arrow"))])


@pytest.fixture(scope="session")
def beir(tmp_path_factory, words):
    """Passages of 5 to 40 words; query i asks for passage i with three of its words."""
    folder = tmp_path_factory.mktemp("beir")
    rng = np.random.default_rng(1)
    passages = [
        {
            "_id": f"d{i}",
            "title": f"title {words[i]}",
            "text": " ".join(rng.choice(words, rng.integers(5, 41))),
        }
        for i in range(N_PASSAGES)
    ]
    queries = [
        {"_id": f"q{i}", "text": " ".join(rng.choice(passages[i]["text"].split(), 3))}
        for i in range(N_QUERIES)
    ]
    write_records(folder / "corpus.jsonl", passages)
    write_records(folder / "queries.jsonl", queries)
    judgments = {f"q{i}": {f"d{i}": 1} for i in range(N_QUERIES)}
    write_qrels(folder / "qrels" / "train.tsv", judgments)
    return folder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Writes a Hugging Face folder of a small BERT or RoBERTa with random weights."""
    import torch
    import transformers
    from tokenizers import BertWordPieceTokenizer

    # Listed, not learned: tokenizers' trainer numbers pieces as a hash table yields them
    # (0.23.3, https://github.com/huggingface/tokenizers/issues/1794).
    starts = [*LETTERS, *(a + b for a in LETTERS for b in LETTERS)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *starts, *(f"##{s}" for s in starts)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}

    def make(kind="Bert", seed=0, **settings):
        folder = tmp_path_factory.mktemp(kind)
        wordpiece = BertWordPieceTokenizer(vocabulary)
        tokenizer = transformers.BertTokenizerFast(
            tokenizer_object=wordpiece._tokenizer,
            **{f"{n}_token": f"[{n.upper()}]" for n in ("unk", "pad", "cls", "sep", "mask")},
        )
        tokenizer.save_pretrained(folder)
        config = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "pad_token_id": tokenizer.pad_token_id,
            "initializer_range": 0.2,
        } | settings
        torch.manual_seed(seed)
        model = getattr(transformers, f"{kind}Model")(
            getattr(transformers, f"{kind}Config")(**config), add_pooling_layer=False
        )
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def unread_corpus(monkeypatch):
    """From now on, a test fails that reads a corpus.jsonl: a mistake is to be found before."""
    from cocondenser_jax.retriever.data import layouts

    read = layouts.read_passages

    def refuse(path):
        assert path.name != "corpus.jsonl"
        return read(path)

    monkeypatch.setattr(layouts, "read_passages", refuse)


@pytest.fixture
def forward_sizes(monkeypatch):
    """How many texts each forward pass of a BERT had, from now on."""
    import transformers

    sizes = []
    forward = transformers.BertModel.forward

    def note_size(self, input_ids, *arguments, **options):
        sizes.append(len(input_ids))
        return forward(self, input_ids, *arguments, **options)

    monkeypatch.setattr(transformers.BertModel, "forward", note_size)
    return sizes


@pytest.fixture(scope="session")
def model_folder(make_model):
    return make_model()


@pytest.fixture(scope="session")
def make_cross_encoder(make_model, tmp_path_factory):
    """Writes the same with a classification head of one score, by transformers alone."""
    import torch
    import transformers

    def make(kind="Bert", **settings):
        backbone, folder = make_model(kind, **settings), tmp_path_factory.mktemp("cross_encoder")
        torch.manual_seed(1)
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        model = load(backbone, num_labels=1)
        for parameter in model.parameters():
            if len(parameter) == 1:  # the last layer: scores of different pairs must differ
                parameter.data.normal_(0.0, 3.0)
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def cross_encoder_folder(make_cross_encoder):
    return make_cross_encoder()
