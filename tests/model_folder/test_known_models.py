"""Models that are known by their names on the hub."""

import pytest

from cocondenser_jax.model_folder.known_models import find_known_model, find_namesake
from cocondenser_jax.representation import NOTHING_GIVEN, Given

TO_SEARCH = "Represent this sentence for searching relevant passages: "
OF_E5 = {"query": "query: ", "document": "passage: "}
OF_CHINESE_BGE = "为这个句子生成表示以用于检索相关文章："
SIZES = ("small", "base", "large")


@pytest.mark.parametrize(
    ("name", "prompts", "scale"),
    [
        *(
            (f"intfloat/{kind}-{size}{version}", OF_E5, 100)
            for size in SIZES
            for kind, version in (("e5", ""), ("e5", "-v2"), ("multilingual-e5", ""))
        ),
        *(
            (f"BAAI/bge-{size}-{language}{version}", {"query": prompt}, 0)
            for size in SIZES
            for language, prompt in (("en", TO_SEARCH), ("zh", OF_CHINESE_BGE))
            for version in ("", "-v1.5")
        ),
        *(
            (f"nomic-ai/{name}", {"query": "search_query: ", "document": "search_document: "}, 0)
            for name in (
                *("nomic-embed-text-v1", "nomic-embed-text-v1.5", "nomic-embed-text-v2-moe"),
                "modernbert-embed-base",
            )
        ),
        *(
            (f"Snowflake/snowflake-arctic-embed-{size}", {"query": TO_SEARCH}, 0)
            for size in ("xs", "s", "m", "m-long", "m-v1.5", "l")
        ),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", {"query": "query: "}, 0),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", {"query": "query: "}, 0),
        ("mixedbread-ai/mxbai-embed-large-v1", {"query": TO_SEARCH}, 0),
        ("MongoDB/mdbr-leaf-ir", {"query": TO_SEARCH}, 0),
        ("MongoDB/mdbr-leaf-mt", {"query": TO_SEARCH}, 0),
    ],
)
def test_prompts_and_scale_by_name(name, prompts, scale):
    known = find_known_model(name)
    assert known.plain == NOTHING_GIVEN
    said = {"query": known.prompts.query_prompt, "document": known.prompts.passage_prompt}
    assert {task: text for task, text in said.items() if text} == prompts
    assert known.scale == scale
    last = name.partition("/")[2]
    for folder in (last, last.upper()):
        assert find_namesake(["model", f"/models/{folder}/"]) == (last.lower(), known.prompts)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("facebook/contriever", "mean"),
        ("facebook/contriever-msmarco", "mean"),
        ("facebook/mcontriever", "mean"),
        ("facebook/mcontriever-msmarco", "mean"),
        ("Luyu/condenser", "cls"),
        ("Luyu/co-condenser-marco", "cls"),
        ("Luyu/co-condenser-wiki", "cls"),
        ("Luyu/co-condenser-marco-retriever", "cls"),
        ("caskcsg/cotmae_base_uncased", "cls"),
        ("caskcsg/cotmae_base_msmarco_retriever", "cls"),
        ("Shitao/RetroMAE", "cls"),
        ("Shitao/RetroMAE_BEIR", "cls"),
        ("Shitao/RetroMAE_MSMARCO", "cls"),
        ("Shitao/RetroMAE_WIKI", "cls"),
        ("Shitao/RetroMAE_MSMARCO_finetune", "cls"),
        ("Shitao/RetroMAE_MSMARCO_distill", "cls"),
    ],
)
def test_plain_folders_by_name(name, pooling):
    known = find_known_model(name)
    assert known.plain == Given(pooling=pooling, similarity="dot")
    assert (known.prompts, known.scale) == (NOTHING_GIVEN, 0.0)
    assert find_known_model(f"{name}-x") is None


@pytest.mark.parametrize(
    "name",
    [
        "BAAI/bge-m3",
        "BAAI/bge-reranker-base",
        "intfloat/e5-mistral-7b-instruct",
        "intfloat/multilingual-e5-large-instruct",
    ],
)
def test_other_models_of_the_same_makers_are_not_taken_for_them(name):
    others = [name, "someone/e5-small-v2", "e5-small-v2", "intfloat/e5-small-v2-finetuned"]
    assert [find_known_model(other) for other in others] == [None] * 4
    assert find_namesake([name, f"my-{name}", "e5-small-v2-finetuned"]) is None
    assert find_namesake(["contriever"]) is None  # it has no prompts to offer
    first, second = (find_known_model(f"intfloat/e5-{size}").prompts for size in ("small", "base"))
    assert find_namesake(["other", "e5-small", "bge-small-en"]) == ("e5-small", first)
    assert find_namesake(["e5-base", "e5-small"]) == ("e5-base", second)
