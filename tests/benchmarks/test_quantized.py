"""The benchmark of number formats, on few vectors."""

import json

import numpy as np
import pytest

from benchmarks import quantized


def test_all_formats_are_measured_and_find_what_they_should(tmp_path, monkeypatch):
    out = tmp_path / "quantized.json"
    sizes = ["--passages=1500", "--dimension=16", "--queries=20", "--rounds=2"]
    monkeypatch.setattr("sys.argv", ["quantized", *sizes, f"--json_out={out}"])
    quantized.main()
    rows = json.loads(out.read_text())
    sizes = {row["format"]: row["bytes a passage"] for row in rows}
    assert sizes == {"float32": 64, "float16": 32, "int8": 16, "binary": 2}
    assert all(row["ms for one query"] > 0 and row["ms a query of 20"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "binary"])
def test_nothing_is_timed_that_finds_others(name):
    vectors_NxD = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    formats = {each.name: each for each in quantized.make_formats(vectors_NxD)}
    each = formats[name]
    quantized.require_nearest(each, vectors_NxD[:5])

    def worse(queries_QxD, k):
        scores_QxK, rows_QxK = each.search(queries_QxD, k + 1)
        return scores_QxK[:, 1:], rows_QxK[:, 1:]

    with pytest.raises(SystemExit, match=f"{name}: the search finds others"):
        quantized.require_nearest(each._replace(search=worse), vectors_NxD[:5])
