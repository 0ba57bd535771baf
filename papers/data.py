"""What no command makes, and where people get it."""

from papers.steps import Step

BERT = Step(
    "$DATA/bert-base-uncased",
    get="the folder of bert-base-uncased: hf download google-bert/bert-base-uncased"
    " --local-dir=DIR",
)
ROBERTA = Step(
    "$DATA/roberta-base",
    get="the folder of roberta-base: hf download FacebookAI/roberta-base --local-dir=DIR",
)
WIKIPEDIA = Step(
    "$DATA/wikipedia",
    get="English Wikipedia as .jsonl files with title and text, from https://dumps.wikimedia.org"
    " by wikiextractor --json, or from the hub's wikimedia/wikipedia",
)
BOOKCORPUS = Step(
    "$DATA/bookcorpus",
    get="BookCorpus as .jsonl files with text, one book a line; it is no longer published by its"
    " authors: the hub has copies such as bookcorpus/bookcorpus",
)
MSMARCO = Step(
    "$DATA/msmarco",
    get="MS MARCO passage: queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv,"
    " qrels.dev.small.tsv from https://microsoft.github.io/msmarco; corpus.tsv (id, title, text),"
    " as the papers have it, by joining para.txt and para.title.txt of"
    " https://rocketqa.bj.bcebos.com/corpus/marco.tar.gz (with MS MARCO's own collection.tsv MRR@10"
    " is 0.03 lower, according to the card of sentence-transformers/msmarco-bert-co-condensor);"
    " TREC DL 2019's passage task as queries.dl19.tsv and qrels.dl19.tsv; and 2,000 queries of dev"
    " that dev.small does not have, to choose the epochs by, as queries.held.tsv and"
    " qrels.held.tsv",
)
MARCO_TRIPLES = Step(
    "$DATA/msmarco/qidpidtriples.train.full.2.tsv",
    get="of the same: the training triples, of ids",
)
MSMARCO_UNTITLED = Step(
    "$DATA/msmarco-untitled",
    get="MS MARCO's own collection.tsv, without titles, and the files of dev.small and dl19 of"
    " msmarco",
)
MSMARCO_DOCUMENTS = Step(
    "$DATA/msmarco-docs",
    get="MS MARCO documents from https://microsoft.github.io/msmarco: msmarco-docs.tsv, and of the"
    " document task msmarco-doctrain-queries.tsv, msmarco-doctrain-qrels.tsv,"
    " msmarco-docdev-queries.tsv, msmarco-docdev-qrels.tsv; TREC DL 2019's document task as"
    " msmarco-docdl19-queries.tsv and msmarco-docdl19-qrels.tsv",
)
DPR = Step(
    "$DATA/dpr",
    get="of https://github.com/facebookresearch/DPR, by its download_data.py: psgs_w100.tsv,"
    " biencoder-nq-train.json, biencoder-trivia-train.json, nq-test.qa.csv, trivia-test.qa.csv",
)
# 58,880 questions with negatives of BM25, and 69,639 with those that DPR itself ranked high.
DPR_HARD = Step(
    "$DATA/dpr/biencoder-nq-hard-train.json",
    get="of the same: the lists of biencoder-nq-train.json and biencoder-nq-adv-hn-train.json in"
    " one list (jq -s add)",
)
STSBENCHMARK = Step(
    "$DATA/stsbenchmark",
    get="sts-train.csv, sts-dev.csv and sts-test.csv of https://ixa2.si.ehu.eus/stswiki/stswiki.html"
    " (Stsbenchmark.tar.gz)",
)
ALLNLI = Step("$DATA/allnli", get="AllNLI.tsv.gz of https://sbert.net/datasets/AllNLI.tsv.gz")
SECTIONS = Step(
    "$DATA/sections",
    get="train.csv, validation.csv and test.csv of"
    " https://sbert.net/datasets/wikipedia-sections-triplets.zip",
)
