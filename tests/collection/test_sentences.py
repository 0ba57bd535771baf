"""Scored pairs, triplets and labelled pairs: what is read, and what is refused."""

import gzip

import pytest

from cocondenser_jax.collection import sentences
from cocondenser_jax.errors import UserError


def test_pairs_are_read_with_quotes_and_further_columns(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text(
        'news\tMSR\t2012\t1\t2.500\tHe said "no.\tHe "said" no.\n'
        "\n"
        "news\tMSR\t2012\t2\t5\tOne.\tTwo.\tlicence\tmore\n"
    )
    assert sentences.read_scored_pairs(path) == [
        ('He said "no.', 'He "said" no.', 2.5),
        ("One.", "Two.", 5.0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tb\tc\td\t1.0\tone", r"sts.csv:1: expected at least 7 tab-separated .*score"),
        ("a\tb\tc\td\t5.1\tone\ttwo", r"sts.csv:1: expected a score of 0 to 5, not '5.1'"),
        ("a\tb\tc\td\thigh\tone\ttwo", r"sts.csv:1: expected a score of 0 to 5, not 'high'"),
        ("a\tb\tc\td\tnan\tone\ttwo", r"sts.csv:1: expected a score of 0 to 5, not 'nan'"),
        ("", "holds no pairs of sentences"),
    ],
)
def test_pairs_of_another_form_are_refused(tmp_path, line, message):
    path = tmp_path / "sts.csv"
    path.write_text(line)
    with pytest.raises(UserError, match=message):
        sentences.read_scored_pairs(path)


def test_triplets_are_read_by_the_names_of_their_columns(tmp_path):
    path = tmp_path / "triplets.csv"
    path.write_text(
        'Article,Sentence1,Sentence2,Sentence3\nx,"One, two.","He said ""no"".",Three.\n'
    )
    assert sentences.read_triplets(path) == [("One, two.", 'He said "no".', "Three.")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Sentence1,Sentence2\na,b\n", "triplets.csv:2: expected the columns Sentence1,"),
        ("Sentence1,Sentence2,Sentence3\na,b,c\n\na,b\n", ":4: expected the columns Sentence1,"),
        ('Sentence1,Sentence2,Sentence3\na,"b,c\n', "triplets.csv:"),
        ("Sentence1,Sentence2,Sentence3\n", "holds no triplets"),
        ("", "holds no triplets"),
    ],
)
def test_triplets_of_another_form_are_refused(tmp_path, text, message):
    path = tmp_path / "triplets.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        sentences.read_triplets(path)


HEAD = "split\tdataset\tfilename\tsentence1\tsentence2\tlabel"


def test_labelled_pairs_are_those_of_the_training_split(tmp_path):
    rows = [
        f"train\tAllNLI\tsnli\t{text}\tOne.\t{label}"
        for text, label in (('He said "no.', "neutral"), ("Two.", "contradiction"))
    ]
    rows += ["dev\tAllNLI\tsnli\tThree.\tFour.\tentailment", "test\tAllNLI\tm\tA.\tB.\tneutral"]
    path = tmp_path / "AllNLI.tsv.gz"
    path.write_bytes(gzip.compress("\n".join([HEAD, *rows, ""]).encode()))
    expected = [('He said "no.', "One.", 2), ("Two.", "One.", 0)]
    assert sentences.read_labelled_pairs(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{HEAD}\ntrain\ta\tb\tone\ttwo\n",
            "x.tsv:2: expected sentence1, .* label, one",
        ),
        (f"{HEAD}\ntrain\ta\tb\tone\ttwo\tyes", "one of contradiction, entailment, n"),
        ("one\ttwo\tthree\nfour\tfive\tsix\n", "x.tsv:2: expected sentence1"),
        (HEAD, "holds no pairs of sentences"),
    ],
)
def test_labelled_pairs_of_another_form_are_refused(tmp_path, text, message):
    path = tmp_path / "x.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        sentences.read_labelled_pairs(path)
