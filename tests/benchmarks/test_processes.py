"""The memory of processes: the data of the cases, and the line through two shares."""

import sys

import numpy as np
import pytest

from benchmarks import processes
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.trec import read_run

SIZE = processes.Size(passages=3000, words=20, queries=200)


def test_a_case_runs_a_command_on_two_shares_and_draws_the_line(monkeypatch):
    made = []

    def run(words, folder):
        queries, qrels = read_split(folder / "data", "train")
        pool = read_run(folder / "1.trec")
        made.append((words[0], len(queries), len(qrels), len(pool)))
        return 0.25 + len(queries) / 1000, 60.0

    monkeypatch.setattr(processes, "run", run)
    monkeypatch.setitem(processes.CASES, "small", (SIZE, 5, processes.mine))
    row = processes.measure("small", (0.1, 0.5))
    assert made == [("mine", 20, 20, 20), ("mine", 100, 100, 100)]
    assert (row["shares"], row["GiB at these"]) == ("0.1, 0.5", "0.27, 0.35")
    assert row["GiB at 1, by the line"] == pytest.approx(0.45)
    assert row["minutes at the last"] == 1


def test_words_are_drawn_as_in_text(tmp_path):
    folder = processes.write_collection(tmp_path / "data", SIZE)
    words = " ".join(passage.text for passage in read_corpus(folder)).split()
    assert len(words) == 60_000
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    # The r-th most frequent of V words has a share of 1 / (r ln V).
    assert counts[0] == pytest.approx(60_000 * np.log(2) / np.log(processes.N_WORDS), rel=0.1)
    assert 20_000 < len(counts) < 60_000


def test_memory_is_the_most_that_the_process_had(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c \'import time; x = b"x" * 200_000_000;'
        " time.sleep(0.5); del x; time.sleep(0.2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    gib, seconds = processes.run(["mine"], tmp_path)
    assert 0.18 < gib < 0.25
    assert seconds > 0.7
