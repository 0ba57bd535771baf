"""Fine-tuning a bi-encoder, first round: BM25 negatives.

Paper: Gao & Callan, "Unsupervised Corpus Aware Language Model Pre-training for Dense Passage
Retrieval" (arXiv 2108.05540), the MS MARCO passage setting.

Command:
  cocondenser finetune --config=configs/finetune.py --workdir=runs/finetune \
    --config.model=runs/model --config.data=DATA --config.negatives_run=runs/bm25.train.trec

Arithmetic of a step: 8 queries × (1 positive + 7 negatives) = 64 passages; a query's softmax runs
over all 64, so it has 7 negatives of its own and 56 of the other queries.
Without a run of negatives (`negatives_per_query=0`), make the batch larger: 64 queries give each
query 63 negatives.

A declaration is: default, allowed values, unit, meaning.
"""

import ml_collections

from cocondenser_jax.errors import UserError
from cocondenser_jax.settings import GIVEN, Setting, to_config

# What every fine-tuning has, whatever its task.
TRAINING = {
    "model": Setting("", GIVEN, "", "folder: Hugging Face BERT or RoBERTa, or a retriever"),
    "data": Setting("", GIVEN, "", "folder in BEIR, MS MARCO or DPR layout; sentences: a file"),
    "batch_size": Setting(32, "[1, ∞)", "rows", "per step, over all processes"),
    "epochs": Setting(1, "[1, ∞)", "epochs", "passes over the training rows"),
    "max_steps": Setting(0, "[0, ∞)", "steps", "ends the run earlier; 0: epochs decide"),
    "learning_rate": Setting(2e-5, "[0, 1]", "", "peak; linear decay to 0"),
    "warmup_ratio": Setting(0.1, "[0, 1)", "of all steps", "linear warm-up"),
    "weight_decay": Setting(0.01, "[0, 1]", "", "AdamW; none on biases and LayerNorm"),
    "precision": Setting(
        "auto", ("auto", "float32", "bfloat16"), "", "auto: bfloat16 on a GPU that has it"
    ),
    "seed": Setting(42, "[0, ∞)", "", "order, negatives, dropout, new heads"),
    "log_every": Setting(50, "[1, ∞)", "steps", "between two lines of metrics"),
    "checkpoint_every": Setting(
        2000, "[0, ∞)", "steps", "0: none, an interrupted run starts again"
    ),
    "loader_workers": Setting(0, "[0, 64]", "processes", "prepare batches; on a GPU, 2 or more"),
}
# What training on queries and passages has, whatever reads them.
RANKING = {
    "split": Setting("train", GIVEN, "", "the judgments: qrels/SPLIT.tsv and the like"),
    "train_queries": Setting(0, "[0, ∞)", "queries", "drawn from the split by seed; 0: all"),
    "strict": Setting(False, None, "", "refuse queries without a positive rather than skip them"),
    "negatives_run": Setting(
        "", None, "", "TREC run, MS MARCO's triples of ids or DPR's biencoder file"
    ),
    "negatives_per_query": Setting(7, "[0, ∞)", "passages", "drawn anew every epoch"),
    "negatives_depth": Setting(200, "[1, ∞)", "passages", "per query, to draw negatives from"),
}
SETTINGS = {
    "task": Setting("retriever", ("retriever",), "", "what is trained"),
    **TRAINING,
    **RANKING,
    "batch_size": Setting(8, "[2, ∞)", "queries", "per step, over all processes"),
    "epochs": TRAINING["epochs"]._replace(default=3),
    "learning_rate": TRAINING["learning_rate"]._replace(default=5e-6),
    "pooling": Setting("", ("", "cls", "mean"), "", "'': the folder's own; a plain folder has cls"),
    "two_towers": Setting(False, None, "", "an encoder each for queries and passages"),
    "query_length": Setting(32, "[3, ∞)", "tokens", "kept of a query"),
    "passage_length": Setting(128, "[3, ∞)", "tokens", "kept of title and text"),
    "loss": Setting(
        "contrastive",
        ("contrastive", "pairwise", "soft_labels", "soft_labels_group"),
        "",
        "pairwise: RankNet; soft labels need a teacher",
    ),
    "teacher_run": Setting("", None, "", "TREC run of a cross-encoder's scores, for soft labels"),
    "scale": Setting(1.0, "(0, ∞)", "", "factor of the inner products: 1 / temperature"),
    "chunk_size": Setting(
        0, "[0, ∞)", "texts", "per forward pass, with a gradient cache; 0: a whole step's"
    ),
    "batches": Setting(
        "random", ("random", "sequential", "hard"), "", "hard: adaptive batch scheduling"
    ),
}


def get_config(argument: str = "") -> ml_collections.ConfigDict:
    """Returns the settings of the paper; `model` and `data` must be named."""
    if argument:
        raise UserError(f"configs/finetune.py has no variant {argument!r}")
    return to_config(SETTINGS)
