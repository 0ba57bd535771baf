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
"""

import ml_collections

from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ml_collections.ConfigDict:
    """Returns the settings of the paper; `model` and `data` must be named."""
    if argument:
        raise UserError(f"configs/finetune.py takes no argument, not {argument!r}")
    config = training_settings()
    config.task = "retriever"

    config.pooling = ""  # "cls" or "mean" instead of the folder's own; a plain folder has "cls"
    config.two_towers = False  # queries and passages get an encoder of their own, equal at first
    config.query_length = 32  # tokens
    config.passage_length = 128  # tokens, of title and text

    # data: a folder in the layout of BEIR, MS MARCO passage or DPR
    config.split = "train"  # qrels/<split>.tsv, qrels.<split>.tsv or biencoder-*-<split>.json
    config.train_queries = 0  # queries drawn from those of the split, by seed; 0: all
    config.strict = False  # refuse queries without a positive, in place of counting them
    # To draw negatives from: a TREC run, MS MARCO's triples of ids, or DPR's biencoder file.
    config.negatives_run = ""
    config.negatives_per_query = 7  # per step; drawn anew every epoch
    config.negatives_depth = 200  # best passages of it, per query, to draw from

    config.loss = "contrastive"  # or "pairwise" (RankNet), "soft_labels", "soft_labels_group"
    # For soft labels: TREC run of a cross-encoder's scores of negatives and positives.
    config.teacher_run = ""
    config.scale = 1.0  # factor of the inner products: 1 / temperature

    config.batch_size = 8  # queries per step, over all processes
    config.chunk_size = 0  # texts per forward pass, with a gradient cache; 0: a whole step's
    config.batches = "random"  # or "sequential", or "hard": adaptive batch scheduling
    config.beam_width = 1  # of the search for hard batches; 0: exchanges only
    config.epochs = 3  # over all (query, relevant passage) pairs
    config.learning_rate = 5e-6  # at its peak
    return config.lock()


def training_settings() -> ml_collections.ConfigDict:
    """Returns what every fine-tuning has, whatever its task."""
    config = ml_collections.ConfigDict()
    config.task = ""  # what is trained
    config.model = ""  # folder: Hugging Face BERT or RoBERTa, or sentence-transformers
    config.data = ""  # folder, or what the task reads

    config.batch_size = 32  # rows per step
    config.epochs = 1
    config.max_steps = 0  # steps; 0: epochs decide
    config.learning_rate = 2e-5  # at its peak
    config.warmup_ratio = 0.1  # share of all steps; then linear decay to 0
    config.weight_decay = 0.01  # AdamW; none on biases and LayerNorm
    config.precision = "auto"  # or "float32", "bfloat16"; auto: bfloat16 on a GPU that has it
    config.seed = 42

    config.log_every = 50  # steps
    config.checkpoint_every = 2000  # steps; 0: none, an interrupted run starts again
    config.loader_workers = 0  # processes that prepare batches; on a GPU, 2 or more
    return config
