"""What published models need whose folders do not say it: plain data, by their names on the hub.

The texts before queries and passages are those with which the models' authors have them evaluated:
the files `*_models.py` of https://github.com/embeddings-benchmark/mteb, in
mteb/models/model_implementations.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from cocondenser_jax.representation import AS_IN_PAPERS, NOTHING_GIVEN, Given


class KnownModel(NamedTuple):
    """What is known of models, by their names on the hub."""

    names: str  # a pattern for the whole name, in small letters
    prompts: Given = NOTHING_GIVEN
    plain: Given = NOTHING_GIVEN  # pooling and similarity of a folder without modules.json
    scale: float = 0.0  # see `Representation.scale`


_TO_SEARCH = Given(query_prompt="Represent this sentence for searching relevant passages: ")
_OF_E5 = Given(query_prompt="query: ", passage_prompt="passage: ")

KNOWN_MODELS = (
    # Wang et al., arXiv 2212.03533 and 2402.05672, whose temperature is 0.01; e5_models.py.
    KnownModel(
        r"intfloat/(multilingual-e5-(small|base|large)|e5-(small|base|large)(-v2)?)",
        _OF_E5,
        scale=100.0,
    ),
    # Xiao et al., arXiv 2309.07597; bge_models.py.
    KnownModel(r"baai/bge-(small|base|large)-en(-v1\.5)?", _TO_SEARCH),
    KnownModel(
        r"baai/bge-(small|base|large)-zh(-v1\.5)?",
        Given(query_prompt="为这个句子生成表示以用于检索相关文章："),  # noqa: RUF001
    ),
    # Nussbaum et al., arXiv 2402.01613; nomic_models.py.
    KnownModel(
        r"nomic-ai/(nomic-embed-text-v(1|1\.5|2-moe)|modernbert-embed-base)",
        Given(query_prompt="search_query: ", passage_prompt="search_document: "),
    ),
    # Merrick et al., arXiv 2405.05374, and Yu et al., arXiv 2412.04506; arctic_models.py.
    KnownModel(r"snowflake/snowflake-arctic-embed-(xs|s|m|m-long|m-v1\.5|l)", _TO_SEARCH),
    KnownModel(r"snowflake/snowflake-arctic-embed-(m|l)-v2\.0", Given(query_prompt="query: ")),
    KnownModel(r"mixedbread-ai/mxbai-embed-large-v1", _TO_SEARCH),  # mixedbread_ai_models.py
    KnownModel(r"mongodb/mdbr-leaf-(ir|mt)", _TO_SEARCH),  # arXiv 2509.12539; mdbr_models.py
    # Izacard et al., arXiv 2112.09118: the mean over all tokens, and the inner product.
    KnownModel(r"facebook/m?contriever(-msmarco)?", plain=Given(pooling="mean", similarity="dot")),
    # Of [CLS] and the inner product: arXiv 2104.08253, 2108.05540, 2208.07670 and 2205.12035.
    KnownModel(r"luyu/(co-)?condenser(-(marco|wiki|marco-retriever))?", plain=AS_IN_PAPERS),
    KnownModel(r"caskcsg/cotmae_base_(uncased|msmarco_retriever)", plain=AS_IN_PAPERS),
    KnownModel(r"shitao/retromae(_(msmarco|beir|wiki)(_finetune|_distill)?)?", plain=AS_IN_PAPERS),
)


def find_known_model(name: str) -> KnownModel | None:
    """Returns what is known of a model by its name on the hub."""
    found = (known for known in KNOWN_MODELS if re.fullmatch(known.names, name.lower()))
    return next(found, None)


def find_namesake(names: Iterable[str]) -> tuple[str, Given] | None:
    """Returns the first of some names that ends like a known model's, and the prompts of that one.

    A folder of this name may hold anything, such as a model that was trained further.
    """
    for name in names:
        last = name.rstrip("/").rpartition("/")[2].lower()
        for known in KNOWN_MODELS:
            is_named_so = re.fullmatch(known.names.partition("/")[2], last)
            if is_named_so and known.prompts != NOTHING_GIVEN:
                return last, known.prompts
    return None
