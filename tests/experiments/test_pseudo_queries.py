"""Queries made of passages, against the texts that they are made of."""

import numpy as np

from experiments.pseudo_queries import make_queries, rarest_words, words_in_a_row

TEXTS = [
    f"the first of {i} sentences has words like {word}. The second has seven other words too."
    f" Short. A third one ends it with nine more than {word}."
    for i, word in enumerate(["red", "green", "blue", "white", "black", "yellow", "pink"])
]


def test_each_text_gives_one_query_of_each_kind():
    n = len(TEXTS)
    queries = make_queries(TEXTS, 1000, seed=0)
    assert len(queries) == 4 * n
    for text in TEXTS:
        first, second, _, third = (part.strip(".") for part in text.split(". "))
        sentences = {f"{first}.", f"{second}.", f"{third}."}
        own = [query for query in queries if query in text or {*query.split()} <= {*text.split()}]
        assert f"{first}." in own
        assert sum(query in sentences for query in own) >= 2
        six = [query for query in own if len(query.split()) == 6]
        assert any(query in text for query in six)
    assert "Short." not in queries


def test_fewer_are_made_where_fewer_are_wanted_and_the_seed_decides_which():
    first, again, other = (make_queries(TEXTS, 7, seed) for seed in (0, 0, 1))
    assert len(first) == 7
    assert first == again
    assert first != other


def test_kinds_come_in_turn():
    queries = make_queries(TEXTS, len(TEXTS), seed=0)
    six = [query for query in queries if len(query.split()) == 6]
    assert 2 <= len(six) < len(TEXTS)


def test_a_text_without_words_gives_no_query():
    assert make_queries(["", " ", "\n"], 10, seed=0) == []


def test_words_in_a_row():
    rng = np.random.default_rng(0)
    text = "one two three four five six seven eight"
    assert words_in_a_row(text, rng) in text
    assert len(words_in_a_row(text, rng).split()) == 6
    assert words_in_a_row("two words", rng) == "two words"


def test_rare_words_are_those_that_the_fewest_texts_have():
    counts = {"the": 9, "cat": 2, "sat": 3, "mat": 1, ".": 1}
    assert rarest_words("the cat sat . the cat mat", counts, n=2) == "cat mat"
