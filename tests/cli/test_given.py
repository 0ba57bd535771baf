"""What a user says of a model's vectors, in place of its folder, wherever the model is used."""

import json

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries
from cocondenser_jax.retriever.data.trec import read_run


@pytest.mark.effect("encode --similarity", "encode --query_prompt", "encode --passage_prompt")
@pytest.mark.effect("encode --dimensions", "search --query_prompt", "retrieve --query_prompt")
@pytest.mark.effect("encode --title_separator")
def test_a_search_uses_what_was_given_to_encode(model_folder, beir, tmp_path, capsys):
    prompts = {"query": "hgf ", "document": "abc: "}
    # Nothing is as it would be if nothing were given: the mean, and the cosine.
    library = SentenceTransformer(
        modules=[Transformer(str(model_folder)), Pooling(32, "cls")],
        prompts=prompts,
        truncate_dim=8,
        similarity_fn_name="dot",
    )
    texts = {p.id: f"{p.title} fgh {p.text}" for p in read_corpus(beir)}
    queries = read_queries(beir)
    expected_QxP = library.similarity(
        library.encode_query([*queries.values()]), library.encode_document([*texts.values()])
    )
    encode = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--pooling=cls"]
    vectors = ["--similarity=dot", "--passage_prompt=abc: ", "--dimensions=8"]
    vectors.append("--title_separator= fgh ")
    out, silent = tmp_path / "out", tmp_path / "silent"
    assert main([*encode, *vectors, "--query_prompt=hgf ", f"--out={out}"]) == 0
    assert main([*encode, *vectors, f"--out={silent}"]) == 0
    assert main(["index", f"--embeddings={out}", f"--out={tmp_path}/index"]) == 0
    retrieve = ["retrieve", f"--model={model_folder}", f"--data={beir}"]
    runs = []
    for number, words in enumerate(
        (
            [f"--embeddings={out}"],
            [f"--embeddings={out}", "--query_prompt=hgf "],
            [f"--index={tmp_path}/index"],
            [f"--embeddings={silent}", "--query_prompt=hgf "],
            [f"--embeddings={silent}"],
        )
    ):
        run = tmp_path / f"{number}.trec"
        assert main([*retrieve, *words, f"--run_out={run}", "--depth=60"]) == 0
        runs.append(read_run(run))
    *same, unprompted = runs
    for run in same:
        for query, expected_P in zip(queries, expected_QxP.tolist(), strict=True):
            expected = dict(zip(texts, expected_P, strict=True))
            assert run[query] == pytest.approx(expected, abs=1e-4)
    assert unprompted != same[0]
    search = ["search", f"--model={model_folder}", "--query=abcde"]
    capsys.readouterr()
    for words in (search, [*retrieve, f"--run_out={tmp_path}/none"]):
        assert main([*words, f"--embeddings={out}", "--query_prompt=fgh "]) == 2
        said = f"{out} was encoded for queries that begin with 'hgf ', not with 'fgh '\n"
        assert capsys.readouterr().err == f"cocondenser: {said}"
    assert not (tmp_path / "none").exists()
    found = tmp_path / "found.json"
    assert (
        main([*search, f"--embeddings={silent}", "--query_prompt=hgf ", f"--json_out={found}"]) == 0
    )
    (scores,) = library.similarity(
        library.encode_query(["abcde"]), library.encode_document([*texts.values()])
    )
    best = json.loads(found.read_text())["hits"][0]["score"]
    assert best == pytest.approx(scores.max().item(), abs=1e-4)
