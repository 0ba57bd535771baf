"""Prints the table of published models in docs/backbones.md: python -m tests.published_table."""

from collections.abc import Iterable

from tests.published import EXACT, ROWS, Case
from tests.published_networks import NETWORKS

COLUMNS = ("models", "network, tokenizer", "vector", "prompts", "`encode`, `adapt`")
_POOLINGS = {"cls": "[CLS]", "mean": "mean", "lasttoken": "last token"}


def published_table() -> str:
    """Returns the table in Markdown, from the records that the tests read."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for models, cases in ROWS.items():
        (cells,) = {_cells(case) for case in cases.values()}  # else it would take two lines
        alike.setdefault(cells, []).append(models)
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    lines += [("; ".join(models), *cells) for cells, models in alike.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(case: Case) -> tuple[str, ...]:
    torch, jax, adapt = case.expected
    if torch != EXACT:
        return ("", "", "", f"refused ({jax})")
    return (
        f"{NETWORKS[case.folder.network].label}, {_tokenizer(case.folder.tokenizer)}",
        ", ".join(_vector(case)),
        _prompts(case),
        _does(jax == EXACT, adapt == EXACT),
    )


def _does(jax: bool, adapt: bool) -> str:
    if jax != adapt:
        raise ValueError("a model that JAX encodes is one that it trains")
    return "both" if adapt else "`encode` in PyTorch"


def _tokenizer(kind: str) -> str:
    """Returns what a user calls it: the details that tests need are left out."""
    name = kind.partition(",")[0].partition(" of ")[0].partition(" without")[0]
    return "SentencePiece (Unigram)" if name == "unigrams" else name


def _vector(case: Case) -> Iterable[str]:
    modules = case.folder.modules
    kinds = [module.kind for module in modules or ()]
    yield _pooling(case)
    if n := kinds.count("Dense"):
        yield "Dense" if n == 1 else f"{n} Dense"
    if "Normalize" in kinds:
        yield "length 1"
        return
    settings = case.folder.settings or {}
    named = case.similarity or settings.get("similarity_fn_name")
    yield "inner product" if named == "dot" else "cosine"


def _pooling(case: Case) -> str:
    if case.folder.modules is None:
        return _POOLINGS["mean"]
    config = case.folder.modules[0].config
    (mode,) = (flag for flag, is_on in config.items() if flag.startswith("pooling_mode") and is_on)
    return _POOLINGS[
        mode.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
    ]


def _prompts(case: Case) -> str:
    if case.prompts:
        return f"{' and '.join(case.prompts)}, by name"
    prompts = (case.folder.settings or {}).get("prompts") or {}
    kinds = [kind for kind in ("query", "document") if prompts.get(kind)]
    return f"{' and '.join(kinds)}, in the folder" if kinds else "none"


if __name__ == "__main__":
    print(published_table(), end="")
