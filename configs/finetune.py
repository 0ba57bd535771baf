r"""Fine-tuning a bi-encoder: MS MARCO passages with BM25 negatives, and variants.

Papers: Gao & Callan, "Unsupervised Corpus Aware Language Model Pre-training for Dense Passage
Retrieval" (arXiv 2108.05540), and "Condenser" (arXiv 2104.08253) for documents.

Command:
  cocondenser finetune --config=configs/finetune.py --workdir=runs/finetune \
    --config.model.folder=runs/model --config.data.folder=DATA \
    --config.data.negatives_run=runs/bm25.train.trec

Arithmetic of a step: 8 queries × (1 positive + 7 negatives) = 64 passages; a query's softmax runs
over all 64, so it has 7 negatives of its own and 56 of the other queries. 532,761 pairs of
a query and a relevant passage × 3 epochs / 8 = 199,785 steps.
The author's command (Tevatron, examples/coCondenser-marco) has the 400,000 queries with BM25's
negatives: 150,000 steps. Here the others draw from a sample of all passages.
Without a run of negatives (`data.negatives_per_query=0`), make the batch larger: 64 queries give
each query 63 negatives.

--config=configs/finetune.py:VARIANT, with --config.data.folder and, but for small,
--config.data.negatives_run:

  marco_round2     data of MS MARCO passages; negatives that `mine` took from two runs, BM25's and
                   round 1's, 200 of each. It starts from the pre-trained model again.
                   A query's negatives are drawn from both, for 3 epochs as in the paper: 199,785
                   steps. The author's command (Tevatron, examples/coCondenser-marco) has 2 epochs
                   of two files, each of one of the runs: about 225,000 steps.
  marco_documents  data of MS MARCO documents, the first 512 tokens; run of BM25.
  nq, trivia       data that papers/dpr.py makes of DPR's files (Karpukhin et al., arXiv
                   2004.04906), and --config.data.negatives_run=DATA/negatives.trec:
                   128 questions × (1 positive + 1 negative) = 256 passages of 256 tokens, 40
                   epochs, 1e-5. Two towers, as the author's command has (coCondenser-nq there; its
                   rate is 5e-6), and its 32 tokens of a question, where DPR has 256. The gradient
                   cache, in chunks of 32 texts: the papers have it too, and trained on one RTX
                   2080 Ti (coCondenser, 4.2.1). [SEP] between title and text, as DPR has it.
  small            a first run: a small model, such as that of configs/small.py, and some thousand
                   queries, without negatives. 64 queries a step, 3e-4; from a model of BERT's size,
                   --learning_rate=2e-5.
  adaptive         adaptive batches of the study of Condenser with them (after Choi et al., IEEE
                   Access 2021): 8 queries, their passages alone, 15 epochs, 5e-6. No run.

Hours of one A100 with BERT-base at 40 % of 312 TFLOP/s, estimated by arithmetic: 1.8 a round;
documents 5.3; nq and trivia 1.9 each; adaptive 0.4 for 100,000 queries.
Expected of coCondenser: MRR@10 of MS MARCO's dev.small 0.357, round 2 0.382; top-20 accuracy after
round 2 0.843 on nq, 0.832 on trivia, of Condenser before it 0.801 and 0.810.

optimizer.weight_decay: 0.01 is that of BERT's pre-training (Devlin et al., arXiv 1810.04805); the
papers name none, the commands of Tevatron and DPR have 0. At 5e-6 all steps together take away
0.5 %.

A declaration is: default, allowed values, unit, meaning.
"""

from typing import Any, get_args

from ml_collections import ConfigDict

from cocondenser_jax.declare import GIVEN, Interval, ListOf, Setting, to_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.trackers import TRACKERS
from cocondenser_jax.representation import POOLINGS, Similarity

# What fine-tuning has, whatever its task.
GENERAL = {
    "seed": Setting(42, Interval(0), "", "order, negatives, dropout, new heads"),
    "log_every": Setting(50, Interval(1), "steps", "interval between lines of metrics"),
    "tracker": Setting(
        "none", TRACKERS, "", "what gets the metrics beside metrics.jsonl, see docs/python.md"
    ),
}
DATA = {
    "data.folder": Setting("", GIVEN, "", "folder in BEIR or MS MARCO layout"),
    "data.split": Setting(
        "train", GIVEN, "", "split whose judgments are used: qrels/SPLIT.tsv or similar"
    ),
    "data.train_queries": Setting(
        0, Interval(0), "queries", "a random sample of the split; 0: all"
    ),
    "data.batch_size": Setting(8, Interval(1), "queries", "per step, over all processes"),
    "data.negatives_run": Setting("", None, "", "TREC run to sample negatives from"),
    "data.negatives_per_query": Setting(7, Interval(0), "passages", "resampled every epoch"),
    "data.negatives_depth": Setting(200, Interval(1), "passages", "per query, to sample from"),
    "data.loader_workers": Setting(
        0, Interval(0, 64), "processes", "that prepare batches; on a GPU, use 2 or more"
    ),
}
MODEL = {"model.folder": Setting("", GIVEN, "", "transformer or retriever: a folder or hub name")}
TRAINING = {
    "train.epochs": Setting(3, Interval(1), "epochs", "passes over the training rows"),
    "train.max_steps": Setting(
        0, Interval(0), "steps", "maximum length of the run; 0: epochs decide"
    ),
    "train.precision": Setting(
        "auto", ("auto", "float32", "bfloat16"), "", "auto: bfloat16 on a GPU that has it"
    ),
    "optimizer.learning_rate": Setting(2e-5, Interval(0, 1), "", "peak, then linear decay to 0"),
    "optimizer.warmup_ratio": Setting(0.1, Interval(0, 0.99), "of all steps", "linear warm-up"),
    "optimizer.weight_decay": Setting(
        0.01, Interval(0, 1), "", "AdamW; none on biases and LayerNorm"
    ),
    "checkpoint.every": Setting(
        2000, Interval(0), "steps", "interval; 0: keep only the best, and a killed run starts over"
    ),
}
SETTINGS = {
    "task": Setting("retriever", ("retriever",), "", "what is trained"),
    **GENERAL,
    **DATA,
    "data.batch_size": DATA["data.batch_size"]._replace(allowed=Interval(2)),
    "data.batches": Setting(
        "random", ("random", "sequential", "hard"), "", "hard: adaptive batch scheduling"
    ),
    "data.batch_scores": Setting(
        "encoder",
        ("encoder", "bm25"),
        "",
        "what scores hard batches from the second epoch; in the first, bm25 does",
    ),
    "data.batch_depth": Setting(
        100, Interval(1), "passages", "scored for each query, for hard batches"
    ),
    **MODEL,
    "model.pooling": Setting(
        "", ("", *POOLINGS), "", "'': the folder's own; cls for one without modules.json"
    ),
    "model.similarity": Setting(
        "",
        ("", *get_args(Similarity)),
        "",
        "'': the folder's own; dot for one without modules.json",
    ),
    "model.two_towers": Setting(False, None, "", "separate encoders for queries and passages"),
    "model.query_length": Setting(32, Interval(3), "tokens", "longest query, prompt included"),
    "model.passage_length": Setting(
        128, Interval(3), "tokens", "longest passage, prompt and title included"
    ),
    "model.query_prompt": Setting("", None, "", "text before each query; '': the folder's own"),
    "model.passage_prompt": Setting("", None, "", "text before each passage; '': the folder's own"),
    "model.title_separator": Setting(
        "",
        None,
        "",
        "separator of title and text, such as [SEP]; '': the folder's own, otherwise a space",
    ),
    "loss.name": Setting(
        "contrastive",
        ("contrastive", "soft_labels"),
        "",
        "soft labels need a teacher",
    ),
    "loss.teacher_run": Setting(
        "", None, "", "TREC run of a cross-encoder's scores, for soft labels"
    ),
    "loss.scale": Setting(
        0.0,
        Interval(0),
        "",
        "factor of the scores, 1 / temperature; 0: that of known models, else 20 for cosines and 1"
        " for inner products",
    ),
    "loss.sizes": Setting(
        (),
        ListOf(int, Interval(1)),
        "",
        "sizes to which vectors may be cut, the largest first, such as [768,256]: the loss is"
        " the sum of the losses for each; []: as many as in the folder",
    ),
    "loss.chunk_size": Setting(
        0, Interval(0), "texts", "per forward pass, with a gradient cache; 0: a whole step's"
    ),
    **TRAINING,
    "optimizer.learning_rate": TRAINING["optimizer.learning_rate"]._replace(default=5e-6),
    "eval.every": Setting(
        0,
        Interval(0),
        "steps",
        "interval between evaluations; the best model is kept; 0: none, keep the last model",
    ),
    "eval.split": Setting("dev", GIVEN, "", "the judgments to evaluate on"),
    "eval.run": Setting(
        "", None, "", "TREC run of the passages to rank, for MRR@100; '': the collection, MRR@10"
    ),
}


_DPR = {
    "data.batch_size": 128,
    "data.negatives_per_query": 1,
    "model.passage_length": 256,
    "model.two_towers": True,
    "model.title_separator": "[SEP]",
    "loss.chunk_size": 32,
    "train.epochs": 40,
    "optimizer.learning_rate": 1e-5,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "small": {
        "data.batch_size": 64,
        "data.negatives_per_query": 0,
        "optimizer.learning_rate": 3e-4,
    },
    "marco_round2": {"data.negatives_depth": 400},
    "marco_documents": {"model.passage_length": 512},
    "nq": _DPR,
    "trivia": _DPR,
    "adaptive": {"data.batches": "hard", "data.negatives_per_query": 0, "train.epochs": 15},
}


def get_config(argument: str = "") -> ConfigDict:
    """Returns the settings of the paper or of a variant; model and data must be named."""
    if argument not in VARIANTS:
        raise UserError(
            f"configs/finetune.py:{argument}: expected one of {', '.join(filter(None, VARIANTS))}"
        )
    config = to_config(SETTINGS)
    config.update_from_flattened_dict(VARIANTS[argument])
    return config
