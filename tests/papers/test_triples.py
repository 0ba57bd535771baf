"""MS MARCO's triples as a run: what is drawn, and what is refused."""

import collections
import gzip

import pytest

from cocondenser_jax.retriever.data.trec import first_passages, read_run
from papers import triples


def write_triples(path, lines, end="\r\n"):
    """Writes triples as they are published, with the line ends of Windows."""
    text = "".join(line.replace(" ", "\t") + end for line in lines)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def drawn(path, out, *flags):
    triples.main([f"--triples={path}", f"--out={out}", *flags])
    return {query: first_passages(scores) for query, scores in read_run(out).items()}


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_all_are_kept_where_there_are_few(tmp_path, end):
    lines = ("q1 a x", "q2 c x", "q1 b x", "q1 a y", "q1 b z")
    path = write_triples(tmp_path / "triples.tsv.gz", lines, end)
    found = drawn(path, tmp_path / "out.trec")
    assert {query: sorted(names) for query, names in found.items()} == {
        "q1": ["x", "y", "z"],
        "q2": ["x"],
    }


def test_negatives_are_drawn_from_all_by_the_seed(tmp_path):
    """Each of 40 is as likely as another, wherever in the file, and however often it comes."""
    queries = [f"q{i}" for i in range(400)]
    # The relevant passage a has all 40 as negatives, b the first ten again.
    lines = [f"{q} a {n}" for q in queries for n in range(40)]
    lines += [f"{q} b {n}" for q in queries for n in range(10)]
    path = write_triples(tmp_path / "triples.tsv.gz", lines)
    runs = [
        drawn(path, tmp_path / f"{seed}.trec", "--depth=8", f"--seed={seed}") for seed in (0, 1)
    ]
    again = drawn(path, tmp_path / "again.trec", "--depth=8")
    assert again == runs[0] != runs[1]
    assert all(len(names) == len({*names}) == 8 for run in runs for names in run.values())
    # Of 3,200 draws each of 40 has 80 on average, with a deviation of 8.
    counts = collections.Counter(name for names in runs[0].values() for name in names)
    assert {*counts} == {str(n) for n in range(40)}
    assert all(80 - 5 * 8 < n < 80 + 5 * 8 for n in counts.values())
    # Ranks are in random order, too: 10 of each passage are first, with a deviation of 3.
    firsts = collections.Counter(names[0] for names in runs[0].values())
    assert max(firsts.values()) < 10 + 5 * 3.2


@pytest.mark.parametrize("line", ["q\td", "a query\ta text\ta text", "q\td\t"])
def test_other_triples_are_refused(tmp_path, line, capsys):
    path = tmp_path / "triples.tsv"
    path.write_text(f"q\td1\td2\n{line}\n")
    with pytest.raises(SystemExit, match="2"):
        triples.main([f"--triples={path}", f"--out={tmp_path / 'out'}"])
    assert f"triples: {path}:2: expected three ids" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
