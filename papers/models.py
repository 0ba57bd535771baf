"""Pre-trained models, as Hugging Face folders that keep their Condenser head.

15 % of the tokens are masked, 80/10/10 (Devlin et al., whom the papers cite), in whole words, as in
the authors' release. For stage 1 the paper has a warm-up of a tenth (Condenser, 4.1). For stage 2
it only states that the learning rate falls linearly (4.1); the release has a warm-up of a tenth.

The numbers of floating-point operations estimate hours. BERT-base takes 20.8e9 to encode a span of
128 tokens, 5.1e9 for 32, 42.7e9 for 256, 89.8e9 for 512 (model/flops.py), three times that to
train; a Condenser takes 78.3e9 for 128 tokens, with the gradient cache 99.1e9 (`cocondenser plan`).
"""

from collections.abc import Callable

from cocondenser_jax.errors import lookup
from papers import commands, costs
from papers.commands import Settings
from papers.data import (
    ALLNLI,
    BERT,
    BOOKCORPUS,
    MSMARCO_DOCUMENTS,
    MSMARCO_UNTITLED,
    ROBERTA,
    WIKIPEDIA,
)
from papers.steps import Step

STAGE_1 = "configs/condenser.py"
STAGE_2 = "configs/cocondenser.py"
N_SPANS = 38.0e6  # 36 to 40 million, of Wikipedia and BookCorpus
N_DOCUMENTS = 3_213_835  # of MS MARCO, two spans of each
N_PASSAGES = 8_841_823  # of MS MARCO
EPOCHS = 8
MLM = 66.0e9  # operations to train on a span of 128 tokens
CONDENSER = 78.3e9
CONTRASTIVE = 83.2e9
COCONDENSER = 99.1e9


# ---- token stores ----


def _store(source: Step, name: str, characters: float) -> Step:
    """A tenth of the spans end early, as in the preprocessing by Condenser's authors."""
    out = f"$WORK/stores/{name}"
    command = commands.corpus(source.out, BERT.out, out, "--short_span_prob=0.1")
    return Step(
        out,
        [command],
        needs=[BERT, source],
        core_seconds=costs.tokenizing(characters),
        bytes=costs.store_bytes(characters),
    )


WIKIPEDIA_STORE = _store(WIKIPEDIA, "wikipedia", 20e9)
BOOKCORPUS_STORE = _store(BOOKCORPUS, "bookcorpus", 4.6e9)
DOCUMENTS_STORE = _store(MSMARCO_DOCUMENTS, "msmarco-docs", 22e9)
# Without titles, as the draft has them; most have one span.
PASSAGES_STORE = _store(MSMARCO_UNTITLED, "msmarco-untitled", 3.0e9)


# ---- stage 1 ----


def condenser() -> Step:
    """Condenser on Wikipedia and BookCorpus, 8 epochs (Condenser, 4.1)."""
    return _on_books("condenser", {}, CONDENSER)


def mlm() -> Step:
    """The same text and steps without the Condenser head."""
    return _on_books("mlm", {"train.objective": "mlm"}, MLM)


def _on_books(name: str, settings: Settings, flop: float) -> Step:
    stores = f"{WIKIPEDIA_STORE.out},{BOOKCORPUS_STORE.out}"
    return _pretrained(
        name,
        STAGE_1,
        {"data.store": stores, "warm_start": BERT.out, **settings},
        needs=[BERT, WIKIPEDIA_STORE, BOOKCORPUS_STORE],
        flop=N_SPANS * EPOCHS * flop,
    )


def ict() -> Step:
    """Inverse cloze task, in batches of 4,096.

    The paper took the published checkpoint of ORQA (Lee et al., arXiv 1906.00300), without its
    projection (A.3). Its spans, epochs and learning rate are ours.
    """
    return _pretrained(
        "ict",
        STAGE_1,
        {
            "data.store": WIKIPEDIA_STORE.out,
            "warm_start": BERT.out,
            "train.objective": "ict",
            "data.batch_size": 4096,
        },
        needs=[BERT, WIKIPEDIA_STORE],
        flop=25.0e6 * EPOCHS * CONTRASTIVE,
    )


def condenser_passages() -> Step:
    """Condenser continued on MS MARCO's passages as before, at 5e-6 (the draft, 5.4)."""
    start = condenser()
    return _pretrained(
        "condenser-passages",
        STAGE_1,
        {
            "data.store": PASSAGES_STORE.out,
            "warm_start": start.out,
            "init_head": False,
            "optimizer.learning_rate": "5e-6",
        },
        needs=[start, PASSAGES_STORE],
        flop=N_PASSAGES * EPOCHS * CONDENSER,
    )


def mlm_passages() -> Step:
    """Our baseline of the same: plain MLM from BERT."""
    return _pretrained(
        "mlm-passages",
        STAGE_1,
        {
            "data.store": PASSAGES_STORE.out,
            "warm_start": BERT.out,
            "train.objective": "mlm",
            "optimizer.learning_rate": "5e-6",
        },
        needs=[BERT, PASSAGES_STORE],
        flop=N_PASSAGES * EPOCHS * MLM,
    )


# ---- stage 2 ----


def cocondenser_marco() -> Step:
    """Stage 2 on MS MARCO's documents, 8 epochs: 12,552 steps (coCondenser, 4.1)."""
    return _on_documents("cocondenser-marco", {}, COCONDENSER)


def contrastive_marco() -> Step:
    """The same without MLM (coCondenser, table 4)."""
    return _on_documents("contrastive-marco", {"train.objective": "contrastive"}, CONTRASTIVE)


def condenser_marco() -> Step:
    """The Condenser continued on the documents, without the contrastive loss."""
    settings: Settings = {"train.objective": "condenser", "data.batch_size": 4096}
    return _on_documents("condenser-marco", settings, CONDENSER)


def _on_documents(name: str, settings: Settings, flop: float) -> Step:
    start = condenser()
    return _pretrained(
        name,
        STAGE_2,
        {"data.store": DOCUMENTS_STORE.out, "warm_start": start.out, **settings},
        needs=[start, DOCUMENTS_STORE],
        flop=N_DOCUMENTS * 2 * EPOCHS * flop,
    )


def cocondenser_wikipedia() -> Step:
    """Stage 2 on Wikipedia, of which about 4.5 million articles have two spans."""
    start = condenser()
    return _pretrained(
        "cocondenser-wikipedia",
        STAGE_2,
        {"data.store": WIKIPEDIA_STORE.out, "warm_start": start.out},
        needs=[start, WIKIPEDIA_STORE],
        flop=4.5e6 * 2 * EPOCHS * COCONDENSER,
    )


def _pretrained(
    name: str, config: str, settings: Settings, *, needs: list[Step], flop: float
) -> Step:
    out = f"$WORK/models/{name}"
    made = commands.pretrain(config, out, settings)
    return Step(
        out,
        made,
        needs,
        flop=flop,
        bytes=costs.PRETRAINING_BYTES,
        scratch=costs.CHECKPOINT_BYTES,
    )


# ---- further training ----


def nli() -> Step:
    """BERT, trained to classify SNLI and MultiNLI (Reimers & Gurevych, arXiv 1908.10084)."""
    out = "$WORK/nli/bert"
    command = commands.words(
        "python -m papers.sentences train",
        "--task=nli",
        f"--model={BERT.out}",
        "--pooling=cls",
        f"--data={ALLNLI.out}/AllNLI.tsv.gz",
        f"--out={out}",
    )
    return Step(out, [command], needs=[BERT, ALLNLI], flop=942.0e3 * 2 * 3 * 10.3e9)


def find(name: str) -> Step:
    """Returns the model that a row of a table names."""
    model: Callable[[], Step] = lookup(_MODELS, name, "model")
    return model()


_MODELS: dict[str, Callable[[], Step]] = {
    "bert": lambda: BERT,
    "roberta": lambda: ROBERTA,
    "nli": nli,
    "mlm": mlm,
    "mlm_passages": mlm_passages,
    "ict": ict,
    "condenser": condenser,
    "condenser_marco": condenser_marco,
    "condenser_passages": condenser_passages,
    "contrastive_marco": contrastive_marco,
    "cocondenser_marco": cocondenser_marco,
    "cocondenser_wikipedia": cocondenser_wikipedia,
}
