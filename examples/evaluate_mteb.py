r"""Evaluates a retriever with mteb, on your own data folder or on a task of mteb.

pip install mteb
python examples/evaluate_mteb.py --model=runs/adapted/retriever --data=data
python examples/evaluate_mteb.py --model=runs/adapted/retriever --task=SciFact

A folder has the layout of BEIR or MS MARCO; its titles are put before its texts as the model says.
mteb puts the model's own prompts before queries and passages, and compares vectors by its own
similarity, as `cocondenser compare` does.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

import cocondenser_jax as cj
from cocondenser_jax.representation import title_separator
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_split


def folder_task(
    folder: Path, split: str = "test", language: str = "eng-Latn", separator: str = " "
) -> Any:
    """Makes an mteb retrieval task from the passages, queries and judgments of a folder.

    `separator` is put between title and text; mteb itself would put a space there, always.
    """
    name = folder.resolve().name

    class FolderRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"{name}-{split}",
            description=f"The passages, queries and judgments in {folder}.",
            dataset={"path": str(folder.resolve()), "revision": "local"},
            type="Retrieval",
            category="t2t",
            eval_splits=[split],
            eval_langs=[language],
            main_score="ndcg_at_10",
        )

        def load_data(self, *arguments: Any, **options: Any) -> None:
            """Reads the folder; mteb would download from the Hub."""
            if self.data_loaded:
                return
            queries, qrels = read_split(folder, split)
            passages = [
                {"id": each.id, "title": "", "text": passage_text(each, separator)}
                for each in read_corpus(folder)
            ]
            data = {
                "corpus": Dataset.from_list(passages),
                "queries": Dataset.from_list([{"id": q, "text": queries[q]} for q in queries]),
                "relevant_docs": qrels,
                "top_ranked": None,
            }
            self.dataset = {"default": {split: data}}
            self.data_loaded = True

    return FolderRetrieval()


def main() -> None:
    """Evaluates, and prints the main score and a few others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--task", help="a task of mteb, such as SciFact")
    arguments = parser.parse_args()
    if (arguments.data is None) == (arguments.task is None):
        parser.error("give one of --data and --task")
    retriever = cj.load_retriever(arguments.model)
    if arguments.data:
        separator = title_separator(retriever.prompts)
        task = folder_task(arguments.data, arguments.split, separator=separator)
    else:
        task = mteb.get_task(arguments.task)
    (result,) = mteb.evaluate(retriever, [task], cache=None, co2_tracker=False).task_results
    for split, (scores, *_) in result.scores.items():
        for name in ("ndcg_at_10", "mrr_at_10", "recall_at_100"):
            if not math.isnan(scores[name]):
                print(f"{result.task_name}, {split}: {name} {scores[name]:.4f}")


if __name__ == "__main__":
    main()
