"""The measurements of the quickstart."""

from experiments.data import QUICKSTART
from papers import commands
from papers.steps import Step


def on_test(run: str) -> Step:
    """Measures a run of the quickstart, such as compare/condenser/test."""
    out = f"{QUICKSTART.out}/{run}.json"
    qrels = f"{QUICKSTART.out}/data/qrels/test.tsv"
    command = commands.evaluate(f"{QUICKSTART.out}/{run}.trec", qrels, "MRR@10,Recall@100", out)
    return Step(out, [command], needs=[QUICKSTART])
