"""Titles and order of the plots of a run's metrics in a report."""

from typing import NamedTuple


class Panel(NamedTuple):
    """Title and unit of one plot."""

    title: str
    unit: str  # of its values, the label of their axis
    is_first: bool = False  # shown directly, before the plots that a reader has to unfold


# Panels by key in metrics.jsonl: first metrics of retrieval, then losses, then all others.
_PANELS = {
    "probe/ndcg_at_10": Panel("Search for the probe's judged queries", "nDCG@10", True),
    "probe/positive_mrr": Panel(
        "Probe: finding the other text of a held-out pair", "mean of 1 / rank", True
    ),
    "contrastive_loss": Panel("Contrastive loss", "nats", True),
    "head_mlm_loss": Panel("MLM loss, Condenser head", "nats per token", True),
    "late_mlm_loss": Panel("MLM loss, backbone", "nats per token", True),
    "loss": Panel("Total loss", "nats", True),
    "probe/recall_at_100": Panel("Search for the probe's judged queries", "Recall@100"),
    "probe/positive_recall_at_1": Panel(
        "Probe: the other text of a pair is first", "share of texts"
    ),
    "probe/positive_recall_at_10": Panel(
        "Probe: the other text is among the first ten", "share of texts"
    ),
    "probe/alignment": Panel("Probe: alignment of the texts of a pair", "mean squared distance"),
    "probe/uniformity": Panel("Probe: uniformity of all vectors", "log of a mean"),
    "probe/effective_rank": Panel("Probe: directions that the vectors use", "effective rank"),
    "probe/mean_cosine": Panel("Probe: similarity of any two texts", "mean cosine"),
    "probe/mlm_loss": Panel("Probe: masked tokens of held-out text", "nats per token"),
    "eval_loss": Panel("Loss on held-out pairs", "nats"),
    "learning_rate": Panel("Learning rate", "rate"),
    "gradient_norm": Panel("Gradient norm before clipping", "norm"),
    "grad_norm": Panel("Gradient norm before clipping", "norm"),
    "skipped": Panel("Steps skipped: not finite", "steps"),
    "spans_per_second": Panel("Speed", "spans per second"),
    "pairs_per_second": Panel("Speed", "pairs per second"),
    "input_wait_share": Panel("Waiting for batches", "share of the time"),
}
_NOT_DRAWN = ("step", "epoch", "tokens_per_second", "model_tflops_per_second")
_EVALUATION = "eval_"  # before a metric, in the logs of transformers


def panel_of(key: str) -> Panel:
    """Returns the panel of a key; an unknown key becomes the title."""
    if key.startswith(_EVALUATION) and key not in _PANELS:
        metric = key.removeprefix(_EVALUATION)
        return Panel("Search for the evaluation's queries", metric, True)
    return _PANELS.get(key, Panel(key, ""))


def in_order(keys: list[str]) -> list[str]:
    """Returns the keys to plot: evaluations first, then in the order of `_PANELS`."""
    first = [key for key in keys if key.startswith(_EVALUATION) and key not in _PANELS]
    known = [key for key in _PANELS if key in keys]
    others = [key for key in keys if key not in (*first, *known, *_NOT_DRAWN)]
    return [*first, *known, *others]
