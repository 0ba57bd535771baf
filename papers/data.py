"""Inputs that no command makes, with their sources."""

from papers.steps import Step


def _made_by(name: str) -> str:
    return (
        f"`python -m papers.get_data {name} --downloads=DIR` makes it of published files, and names"
        " those that are not in DIR, with their addresses"
    )


BERT = Step(
    "$DATA/bert-base-uncased",
    get="the folder of bert-base-uncased: hf download google-bert/bert-base-uncased"
    " --local-dir=DIR",
)
ROBERTA = Step(
    "$DATA/roberta-base",
    get="the folder of roberta-base: hf download FacebookAI/roberta-base --local-dir=DIR",
)
WIKIPEDIA = Step("$DATA/wikipedia", get=_made_by("wikipedia"))
BOOKCORPUS = Step("$DATA/bookcorpus", get=_made_by("bookcorpus"))
# The papers' passages have RocketQA's titles: with MS MARCO's own, without titles, MRR@10 is 0.03
# lower, according to the card of sentence-transformers/msmarco-bert-co-condensor.
MSMARCO = Step("$DATA/msmarco", get=_made_by("msmarco"))
MSMARCO_UNTITLED = Step("$DATA/msmarco-untitled", get=_made_by("msmarco-untitled"))
MARCO_TRIPLES = Step(
    "$DATA/msmarco-triples/qidpidtriples.train.full.2.tsv.gz", get=_made_by("msmarco-triples")
)
MSMARCO_DOCUMENTS = Step("$DATA/msmarco-docs", get=_made_by("msmarco-docs"))
DPR = Step("$DATA/dpr", get=_made_by("dpr"))
STSBENCHMARK = Step("$DATA/stsbenchmark", get=_made_by("stsbenchmark"))
ALLNLI = Step("$DATA/allnli", get=_made_by("allnli"))
SECTIONS = Step("$DATA/sections", get=_made_by("sections"))
