"""Evaluates a model during training on the ranking of passages for held-out queries."""

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from sentence_transformers.base.evaluation import BaseEvaluator

from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.retriever.data.folder import (
    read_candidates,
    read_split,
    require_known,
    split_files,
    with_positives,
)
from cocondenser_jax.retriever.data.same_text import with_copies
from cocondenser_jax.retriever.search.finite import require_finite
from cocondenser_jax.retriever.search.models import uses_bfloat16
from cocondenser_jax.retriever.train.settings import DevSettings
from cocondenser_jax.retriever.train.trainer import DIVERGED


class DevEvaluator(BaseEvaluator):
    """Ranks passages for the queries of a split by the loss's scores; returns a loss and MRR.

    The loss is contrastive, whatever the training loss: the mean over q and d⁺ of

      −log( exp s(q, d⁺) / (exp s(q, d⁺) + Σ_d exp s(q, d)) ),

    where d are the ranked passages that are not relevant to q. MRR is the mean of 1 / rank of the
    best relevant passage, or 0 beyond the cutoff; ties count against it. Without a run, the whole
    collection is ranked, with a cutoff of 10. With a run, the cutoff is 100, and the ranked
    passages are the relevant ones and the run's for the query (or, if it has none, for all other
    queries). A passage with its query's id is ranked only if it is relevant (see `identical_ids`).
    """

    # Not the library's InformationRetrievalEvaluator (6.2.0), which has no loss and no candidates
    # per query, and breaks ties by id, so that a collapsed model may seem to rank.

    def __init__(
        self,
        settings: DevSettings,
        passages: Mapping[str, str],
        score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        """Reads the split.

        Args:
          settings: see `DevSettings`.
          passages: id → text, of the whole collection, as in `TrainingData`.
          score: `InBatchLoss.score`.
        """
        super().__init__()
        queries, qrels = read_split(settings.folder, settings.split)
        files = split_files(settings.folder, settings.split)
        require_known(chain.from_iterable(qrels.values()), passages, "passages", files["judgments"])
        del files["corpus"]  # read by the training already
        if settings.run:
            files["run"] = Path(settings.run)
        # Kind → SHA-256 of the file.
        self.checksums = {f"eval_{name}": file_sha256(file) for name, file in files.items()}
        relevant = with_positives(qrels)
        others: dict[str, list[str]] = {}
        if settings.run:
            found = read_candidates(files["run"], qrels, passages, len(passages))
            others = {query: [p for p in names if p != query] for query, names in found.items()}
            names = list(dict.fromkeys(chain(*relevant.values(), *others.values())))
        else:
            names = list(passages)
        rows = {passage: row for row, passage in enumerate(names)}
        texts = {passage: passages[passage] for passage in names}
        judged = with_copies(relevant, texts.items(), texts.items())  # copies are not negatives
        self._queries = [queries[query] for query in relevant]
        self._passages = [*texts.values()]
        self._relevant_Q = [[rows[p] for p in grades] for grades in relevant.values()]
        self._others_Q = [
            [rows[p] for p in others.get(query, [])] or slice(None) for query in relevant
        ]
        self._left_out_Q = [
            [rows[p] for p in judged[query]] + ([rows[query]] if query in rows else [])
            for query in relevant
        ]
        self._score = score
        self._bfloat16 = uses_bfloat16(settings.precision)
        self._query_ids = [*relevant]
        self._passage_ids = names
        self._cutoff = 100 if settings.run else 10
        self._every = settings.every

    def arguments(self) -> dict[str, Any]:
        """Returns the trainer's arguments for evaluation."""
        return {
            "eval_strategy": "steps",
            "eval_steps": self._every,
            "metric_for_best_model": f"eval_MRR@{self._cutoff}",  # with transformers' prefix
            "save_strategy": "steps",
        }

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Encodes with a model and ranks; returns `loss`, and `MRR@10` or `MRR@100`.

        Raises:
          UserError: for a vector with NaN or infinity.
        """
        with torch.autocast(model.device.type, torch.bfloat16, enabled=self._bfloat16):
            queries = model.encode_query(self._queries, show_progress_bar=False)
            passages = model.encode_document(self._passages, show_progress_bar=False)
        require_finite(queries, "query", self._query_ids, DIVERGED)
        require_finite(passages, "passage", self._passage_ids, DIVERGED)
        queries_QxD = torch.from_numpy(queries)
        passages_NxD = torch.from_numpy(passages)
        losses = []
        reciprocal_ranks = []
        for query_D, relevant, left_out, others in zip(
            queries_QxD, self._relevant_Q, self._left_out_Q, self._others_Q, strict=True
        ):
            with torch.no_grad():
                scores_N = self._score(query_D[None], passages_NxD)[0].double().numpy()
            relevant_R = scores_N[relevant]
            scores_N[left_out] = -np.inf
            others_N = scores_N[others]
            losses += np.logaddexp(0, logsumexp(others_N) - relevant_R).tolist()
            rank = 1 + np.count_nonzero(~(others_N < relevant_R.max()))
            reciprocal_ranks.append(1 / rank if rank <= self._cutoff else 0.0)
        return {
            "loss": float(np.mean(losses)),
            f"MRR@{self._cutoff}": float(np.mean(reciprocal_ranks)),
        }
