"""What scores are multiplied by in the loss of a bi-encoder."""

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import cos_sim, dot_score

from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_split
from cocondenser_jax.retriever.train.tasks import finetune
from tests.world import change_settings


@pytest.mark.parametrize(
    ("name", "similarity", "given", "expected"),
    [
        ("mine", "dot", 0.0, 1),
        ("mine", "cosine", 0.0, 20),
        ("e5-small-v2", "cosine", 0.0, 20),  # the name of a folder says nothing
        ("e5-small-v2", "dot", 0.0, 1),
        ("e5-small-v2", "cosine", 5.0, 5),
    ],
)
def test_the_scale_is_the_models_unless_one_is_given(
    make_model, beir, config, tmp_path, caplog, name, similarity, given, expected
):
    network = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    folder = tmp_path / name
    # A prompt is read and, in some models, not pooled.
    pooling = Pooling(32, "mean", include_prompt=similarity == "cosine")
    layers = [Transformer(str(network)), pooling]
    SentenceTransformer(modules=layers, prompts={"query": "ab "}).save_pretrained(str(folder))
    queries, qrels = read_split(beir, "train")
    passages = {p.id: passage_text(p) for p in read_corpus(beir)}
    change_settings(
        config,
        {
            "model.folder": str(folder),
            "model.similarity": similarity,
            "loss.scale": given,
            "data.batch_size": len(queries),
            "train.max_steps": 1,
        },
    )
    with caplog.at_level("INFO"):
        found = finetune(config, tmp_path / "run")["loss"]
    model = SentenceTransformer(str(folder))
    compare = dot_score if similarity == "dot" else cos_sim
    loss = MultipleNegativesRankingLoss(model, scale=expected, similarity_fct=compare)
    model.max_seq_length = 8
    columns = [model.preprocess(list(queries.values()), prompt="ab ")]
    model.max_seq_length = 16
    columns.append(model.preprocess([passages[p] for grades in qrels.values() for p in grades]))
    with torch.no_grad():
        assert found == pytest.approx(loss(columns, None).item(), rel=1e-4)
    said = f"the loss multiplies scores by {expected} (config.loss.scale)"
    assert caplog.messages.count(said) == 1
