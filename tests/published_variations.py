"""Folders that are published less often, or went wrong: variations of those in `published.ROWS`."""

from tests.published import (
    CLS,
    E5,
    EXACT,
    MEAN,
    MINILM,
    OF_2_7,
    OF_3_0,
    OF_3_3,
    UNIT,
    XLM_R,
    Case,
    Expected,
    refused,
)
from tests.published_folders import IDENTITY, TANH, Module, dense, pooling
from tests.published_networks import HIDDEN

_CUT = HIDDEN // 4
_RAW = MINILM._replace(modules=(MEAN,))  # vectors of any length
_PREFIXED = {"query": "query: ", "document": "passage: "}
_CASED = MINILM._replace(tokenizer="cased WordPiece of BERT")
_NOT_IN_FLAX = "expected cls or mean"

SIMILARITY = {
    "similarity null": Case(_RAW._replace(settings=OF_3_0)),
    "no settings": Case(_RAW._replace(settings=None)),
    "dot with Normalize": Case(MINILM._replace(settings={**OF_2_7, "similarity_fn_name": "dot"})),
    "dot": Case(_RAW._replace(settings={**OF_2_7, "similarity_fn_name": "dot"})),
    "euclidean": Case(
        _RAW._replace(settings={**OF_2_7, "similarity_fn_name": "euclidean"}),
        refused("'euclidean'"),
    ),
}
SIZES = {
    "cut, cosine": Case(_RAW._replace(settings={**OF_3_3, "truncate_dim": _CUT})),
    "cut after Normalize": Case(MINILM._replace(settings={**OF_3_3, "truncate_dim": _CUT})),
    "cut, dot": Case(
        _RAW._replace(settings={**OF_3_3, "truncate_dim": _CUT, "similarity_fn_name": "dot"})
    ),
}
PROMPTS = {
    "prompt named passage": Case(MINILM._replace(settings={**OF_3_3, "prompts": E5}), prompts=E5),
    "prompt named corpus": Case(
        MINILM._replace(settings={**OF_3_3, "prompts": {"corpus": "passage: "}}),
        prompts={"passage": "passage: "},
    ),
    "default prompt": Case(
        MINILM._replace(
            settings={
                **OF_3_3,
                "prompts": {"query": "query: ", "STS": "same: "},
                "default_prompt_name": "STS",
            }
        )
    ),
    "prompts on byte-level BPE": Case(
        XLM_R._replace(
            network="roberta",
            tokenizer="byte-level BPE of RoBERTa",
            settings={**OF_3_3, "prompts": _PREFIXED},
        )
    ),
    # The name is known, but the folder has prompts of its own.
    "e5-base-v2": Case(MINILM._replace(settings={**OF_3_3, "prompts": {"query": "task: "}})),
    "named in config.json": Case(
        MINILM._replace(changes={"config.json": {"_name_or_path": "intfloat/e5-small-v2"}})
    ),
    "prompt left out of the mean": Case(
        MINILM._replace(
            modules=(pooling("mean", include_prompt=False), UNIT),
            settings={**OF_3_3, "prompts": _PREFIXED},
        ),
    ),
    "prompt left out of [CLS]": Case(
        MINILM._replace(
            modules=(pooling("cls", include_prompt=False),),
            settings={**OF_3_3, "prompts": {"query": "query: "}},
        ),
    ),
    "prompt left out of the largest": Case(
        MINILM._replace(
            modules=(pooling("max", include_prompt=False),),
            settings={**OF_3_3, "prompts": _PREFIXED},
        ),
        Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX),
    ),
}
TOKENS = {
    "lower case in the second file": Case(
        _CASED._replace(changes={"sentence_bert_config.json": {"do_lower_case": True}}),
        Expected(adapt="do_lower_case"),
    ),
    "capitals in the second file": Case(
        MINILM._replace(changes={"tokenizer_config.json": {"do_lower_case": False}}),
        Expected(adapt="do_lower_case"),
    ),
    "no limit": Case(
        MINILM._replace(
            max_length=None, changes={"tokenizer_config.json": {"model_max_length": 10**30}}
        )
    ),
    "limit of the tokenizer": Case(
        MINILM._replace(
            max_length=None, changes={"tokenizer_config.json": {"model_max_length": 16}}
        )
    ),
    "vocab.txt alone": Case(MINILM._replace(lacks=("tokenizer.json",))),
    "vocab.json and merges.txt alone": Case(
        XLM_R._replace(
            network="roberta",
            tokenizer="byte-level BPE of RoBERTa",
            lacks=("tokenizer.json",),
        )
    ),
}
LAYOUTS = {
    "saved by release 6": Case(MINILM._replace(saved_as="the same")),
    "saved by release 6, with Dense": Case(
        MINILM._replace(
            modules=(CLS, dense(16, TANH)),
            settings={**OF_3_3, "prompts": _PREFIXED},
            max_length=16,
            saved_as="the same",
        )
    ),
    "transformer in a subfolder": Case(MINILM._replace(in_subfolder=True)),
    "dtype in the second file": Case(
        MINILM._replace(
            changes={"sentence_bert_config.json": {"model_args": {"torch_dtype": "bfloat16"}}}
        )
    ),
    "plain folder": Case(MINILM._replace(modules=None, settings=None)),
    "two towers": Case(MINILM._replace(saved_as="two towers"), Expected(adapt="two towers")),
}
MODULES = {
    "two Dense": Case(
        _RAW._replace(modules=(MEAN, dense(48, TANH), dense(16, IDENTITY, 48, bias=False)))
    ),
    "Dense, cut": Case(
        _RAW._replace(
            modules=(MEAN, dense(48, IDENTITY, bias=False)),
            settings={**OF_3_3, "truncate_dim": _CUT},
            weights="bfloat16",
        )
    ),
    "Dense with its input added": Case(
        _RAW._replace(modules=(MEAN, dense(HIDDEN, TANH, use_residual=True))),
        refused("use_residual"),
    ),
    "Normalize before Dense": Case(
        _RAW._replace(modules=(MEAN, UNIT, dense(16, TANH))),
        Expected(adapt="scales vectors before a dense layer"),
    ),
    "Normalize before and after Dense, inner products": Case(
        _RAW._replace(
            modules=(MEAN, UNIT, dense(16, TANH), UNIT),
            settings={**OF_2_7, "similarity_fn_name": "dot"},
        ),
        Expected(adapt="scales vectors before a dense layer"),
    ),
    "Normalize between Dense": Case(
        _RAW._replace(modules=(MEAN, dense(48, TANH), UNIT, dense(16, TANH, 48))),
        refused("Dense, Normalize, Dense"),
    ),
    "largest": Case(
        _RAW._replace(modules=(pooling("max"),)), Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX)
    ),
    "largest, and its inner products": Case(
        _RAW._replace(modules=(pooling("max"),), settings={**OF_2_7, "similarity_fn_name": "dot"}),
        Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX),
    ),
    "weighted mean": Case(
        MINILM._replace(modules=(pooling("other", pooling_mode_weightedmean_tokens=True), UNIT)),
        Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX),
    ),
    "sum by the root of the length": Case(
        _RAW._replace(modules=(pooling("other", pooling_mode_mean_sqrt_len_tokens=True),)),
        Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX),
    ),
    "no mode of pooling": Case(
        _RAW._replace(modules=(Module("Pooling", {"word_embedding_dimension": HIDDEN}),))
    ),
    "mean and [CLS]": Case(
        _RAW._replace(modules=(pooling("mean", pooling_mode_cls_token=True),)),
        Expected(EXACT, _NOT_IN_FLAX, _NOT_IN_FLAX),
    ),
    "LayerNorm": Case(_RAW._replace(saved_as="with LayerNorm"), refused("LayerNorm")),
    "LSTM": Case(_RAW._replace(saved_as="with an LSTM"), refused("LSTM")),
    "WordWeights": Case(_RAW._replace(saved_as="with weights of words"), refused("WordWeights")),
    "two transformers": Case(
        _RAW._replace(saved_as="with two transformers"), refused("Transformer, Transformer")
    ),
}
CONTRADICTIONS = {
    "Dense of another size": Case(
        _RAW._replace(modules=(MEAN, dense(16, TANH, 48))), refused("Dense")
    ),
    "more layers than weights": Case(
        _RAW._replace(changes={"config.json": {"num_hidden_layers": 3}}),
        refused("parameters"),
    ),
}
VARIATIONS = SIMILARITY | SIZES | PROMPTS | TOKENS | LAYOUTS | MODULES | CONTRADICTIONS
