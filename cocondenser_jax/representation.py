"""What a model's vectors are, and what a user says of them instead: plain data."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

Similarity = Literal["dot", "cosine"]
Pooling = Literal["cls", "mean"]  # how the networks here make one vector of a text's tokens
POOLINGS: tuple[str, ...] = get_args(Pooling)
SIMILARITIES: tuple[str, ...] = get_args(Similarity)
QUERY_PROMPT = "query"  # the name of what is put before queries
# What may follow a linear layer, by the names of torch.nn, of which published folders name the
# first three. All networks here have them.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")
PASSAGE_PROMPTS = ("document", "passage", "corpus")  # the names of what is put before passages
# The name of what is put between a passage's title and its text. It is kept among the prompts,
# which sentence-transformers saves, whatever their names.
TITLE_SEPARATOR = "title_separator"
COSINE_SCALE = 20.0  # sentence-transformers' default


class Dense(NamedTuple):
    """A linear layer after the pooling."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "torch.nn.modules.activation.Tanh"  # as in the folder

    @property
    def activation_name(self) -> str:
        """The activation, by its name in torch.nn; a class of another package by its full name."""
        package, _, name = self.activation.rpartition(".")
        return name if f"{package}.".startswith("torch.nn.") else self.activation


class Representation(NamedTuple):
    """How texts become vectors, and how vectors are compared."""

    pooling: str = "cls"  # of POOLINGS: the last layer at [CLS], or its mean over all tokens
    dense: tuple[Dense, ...] = ()
    normalized: bool = False  # whether the last module scales vectors to length 1
    similarity: Similarity = "dot"
    scale: float = 0.0  # of scores in a contrastive loss; 0: see `score_scale`
    # How many dimensions of a vector are used, the largest first; (): all. The first is what it
    # has, and a folder's `truncate_dim`, which is written where it leaves numbers out. In training,
    # vectors that are cut further count as much (Kusupati et al., arXiv 2205.13147); no folder
    # names those.
    sizes: tuple[int, ...] = ()
    scaled_before_dense: bool = False  # whether what the first dense layer reads has length 1
    prompts: tuple[tuple[str, str], ...] = ()  # kind of text, and what is put before such texts
    # The name of the prompt of texts that are neither queries nor passages; None: they have none.
    default_prompt: str | None = None
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    max_length: int | None = None  # tokens that are read of a text; None: all that the network can
    query_length: int | None = None  # of a query, and of a passage; None: as of other texts
    passage_length: int | None = None

    @property
    def is_cosine(self) -> bool:
        """Whether scores are cosines, as inner products of whole vectors of length 1."""
        return self.normalized or self.similarity == "cosine"

    @property
    def has_unit_length(self) -> bool:
        """Whether vectors have length 1 even where they are cut: "dot" leaves the rest as it is."""
        return self.similarity == "cosine" or (self.normalized and not self.sizes)

    @property
    def as_exported(self) -> "Representation":
        """These vectors as a trained model makes them: of length 1 where scores are cosines."""
        return self._replace(normalized=self.is_cosine)

    def full_size(self, hidden_size: int) -> int:
        """Returns the dimension of a vector before truncation, for a network's hidden size."""
        return self.dense[-1].out_features if self.dense else hidden_size

    def vector_size(self, hidden_size: int) -> int:
        """Returns the dimension of a vector, for a network's hidden size."""
        return self.sizes[0] if self.sizes else self.full_size(hidden_size)

    def is_cut(self, hidden_size: int) -> bool:
        """Whether vectors are truncated."""
        return self.vector_size(hidden_size) < self.full_size(hidden_size)

    def reading_as(self, other: "Representation") -> "Representation":
        """Returns this representation with the prompts and limits of another one."""
        return self._replace(
            prompts=other.prompts,
            default_prompt=other.default_prompt,
            max_length=other.max_length,
            query_length=other.query_length,
            passage_length=other.passage_length,
        )

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by in a contrastive loss: 1 / temperature."""
        return self.scale or (COSINE_SCALE if self.is_cosine else 1.0)


class Given(NamedTuple):
    """Overrides of a model folder's representation; None keeps the folder's own value."""

    pooling: Pooling | None = None
    similarity: Similarity | None = None
    query_prompt: str | None = None  # "": none
    passage_prompt: str | None = None  # "": none
    title_separator: str | None = None  # "": a space
    dimensions: int | None = None  # that are kept of a vector


NOTHING_GIVEN = Given()
# What a plain folder means where a model is trained, as in the papers (arXiv 2104.08253).
AS_IN_PAPERS = Given(pooling="cls", similarity="dot")


def is_falling(sizes: Sequence[int]) -> bool:
    """Whether sizes of vectors are in their order: each smaller than the one before it."""
    return all(size > smaller for size, smaller in pairwise(sizes))


_COSINE = Representation(normalized=True, similarity="cosine")
# As settings and the command line name them.
SPELLINGS = {
    "cls": Representation(),
    "mean": Representation("mean"),
    "cls-cosine": _COSINE,
    "mean-cosine": _COSINE._replace(pooling="mean"),
}


def with_given(published: Representation, given: Given) -> Representation:
    """Returns a representation with what a user says in place of what its folder says.

    Another pooling keeps what follows it. Inner products are those of vectors as they are, so
    a module that scales them to length 1 is left out where "dot" is given. A scale is one of
    cosines or of inner products: where these change, it is no longer known.
    """
    changed = published
    if given.pooling is not None:
        changed = changed._replace(pooling=given.pooling)
    if given.similarity is not None:
        normalized = published.normalized and given.similarity == "cosine"
        changed = changed._replace(similarity=given.similarity, normalized=normalized)
        if changed.is_cosine != published.is_cosine:
            changed = changed._replace(scale=0.0)
    if given.dimensions is not None:
        changed = changed._replace(sizes=(given.dimensions,))
    prompts = dict(published.prompts)
    if given.query_prompt is not None:
        prompts[QUERY_PROMPT] = given.query_prompt
    if given.passage_prompt is not None:
        prompts |= dict.fromkeys(PASSAGE_PROMPTS, "")
        prompts[PASSAGE_PROMPTS[0]] = given.passage_prompt
    if given.title_separator is not None:
        prompts[TITLE_SEPARATOR] = given.title_separator
    named = tuple((name, text) for name, text in prompts.items() if text)
    default = changed.default_prompt if changed.default_prompt in dict(named) else None
    return changed._replace(prompts=named, default_prompt=default)


def library_prompts(prompts: Mapping[str, str]) -> dict[str, str]:
    """Returns prompts with those of queries and passages under the names that are looked up first.

    sentence-transformers (6.2.0) adds an empty "document", and then overlooks a "passage".
    """
    named = {QUERY_PROMPT: query_prompt(prompts), PASSAGE_PROMPTS[0]: passage_prompt(prompts)}
    return {**prompts, **named}


def query_prompt(prompts: Mapping[str, str | None]) -> str:
    """Returns what is put before queries."""
    return prompts.get(QUERY_PROMPT) or ""


def passage_prompt(prompts: Mapping[str, str | None]) -> str:
    """Returns what is put before passages, by the names that sentence-transformers looks for."""
    return next((text for name in PASSAGE_PROMPTS if (text := prompts.get(name))), "")


def prompts_before_texts(prompts: Mapping[str, str | None]) -> list[str]:
    """Returns what queries, passages and other texts of training begin with; "" for nothing."""
    return sorted({"", query_prompt(prompts), passage_prompt(prompts)})


def title_separator(prompts: Mapping[str, str | None]) -> str:
    """Returns what is put between a passage's title and its text: a space where nothing is said."""
    return prompts.get(TITLE_SEPARATOR) or " "


def join_title(title: str, text: str, separator: str) -> str:
    """Returns a passage as it is read, in training and in search: its title before its text.

    Without a title, or where it is the text's first line already, that is the text alone. A text
    that begins with the words of its title, or with longer ones, has the title before it.
    """
    first_line = text.lstrip().partition("\n")[0]
    if not title or first_line.split() == title.split():
        return text
    return f"{title}{separator}{text}"


def to_json(representation: Representation) -> dict[str, Any]:
    """Returns the fields as plain JSON values."""
    return {
        **representation._asdict(),
        "dense": [dense._asdict() for dense in representation.dense],
        "sizes": list(representation.sizes),
        "prompts": dict(representation.prompts),
    }


def from_json(values: Mapping[str, Any]) -> Representation:
    """Returns what `to_json` was made of; a ValueError for anything else."""
    try:
        made = Representation(
            **{
                **values,
                "dense": tuple(Dense(**dense) for dense in values["dense"]),
                "sizes": tuple(values["sizes"]),
                "prompts": tuple(values["prompts"].items()),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{values!r} is no representation") from error
    if not _has_its_types(made):
        raise ValueError(f"{values!r} is no representation")
    return made


def _has_its_types(made: Representation) -> bool:
    """Whether every field of what was read from a file has a type and size that it may have."""
    flags = (made.scaled_before_dense, made.normalized, made.include_prompt)
    lengths = (made.max_length, made.query_length, made.passage_length)
    dense_sizes = [size for each in made.dense for size in (each.in_features, each.out_features)]
    counts = [*made.sizes, *dense_sizes, *(each for each in lengths if each is not None)]
    texts = [made.pooling, *dict(made.prompts).values(), *(each.activation for each in made.dense)]
    return (
        made.similarity in SIMILARITIES
        and isinstance(made.scale, float)
        and isinstance(made.default_prompt, str | None)
        and all(isinstance(flag, bool) for flag in (*flags, *(each.bias for each in made.dense)))
        and all(type(count) is int and count > 0 for count in counts)
        and all(isinstance(text, str) for text in texts)
    )
