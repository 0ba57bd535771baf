"""MS MARCO's triples as a run: what is kept, and what is refused."""

import gzip

import pytest

from cocondenser_jax.collection.trec import first_passages, read_run
from papers import triples


def test_triples_are_kept_to_the_depth(tmp_path):
    path = tmp_path / "triples.tsv.gz"
    lines = ("q1 a x", "q2 c x", "q1 b x", "q1 a y", "q1 b z")
    path.write_bytes(
        gzip.compress("".join(line.replace(" ", "\t") + "\n" for line in lines).encode())
    )
    for depth, expected in ((9, ["x", "y", "z"]), (2, ["x", "y"])):
        out = tmp_path / f"{depth}.trec"
        triples.main([f"--triples={path}", f"--out={out}", f"--depth={depth}"])
        run = read_run(out)
        assert {query: first_passages(scores) for query, scores in run.items()} == {
            "q1": expected,
            "q2": ["x"],
        }


@pytest.mark.parametrize("line", ["q\td", "a query\ta text\ta text", "q\td\t"])
def test_other_triples_are_refused(tmp_path, line, capsys):
    path = tmp_path / "triples.tsv"
    path.write_text(f"q\td1\td2\n{line}\n")
    with pytest.raises(SystemExit, match="2"):
        triples.main([f"--triples={path}", f"--out={tmp_path / 'out'}"])
    assert f"triples: {path}:2: expected three ids" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
