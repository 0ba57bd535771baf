"""What steps are estimated to take: hours, cores, disk; and a disk that is too small."""

from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.limits import CARDS, TPUS
from papers import costs, estimates
from papers.estimates import estimate, require_free, require_room
from papers.reproduce import PAPERS
from papers.steps import Step
from tests.papers import rows
from tests.papers.rows import FOLDERS


def of(*steps):
    return estimate({FOLDERS.result(step): step for step in steps}, FOLDERS)


def of_row(table, *names):
    return estimate(rows.steps(PAPERS, table, *names), FOLDERS)


def test_hours_are_those_of_the_roofline_at_a_fraction_of_the_peak():
    """By plan, a step of 4,096 spans takes a v3-8 at least 825 ms of arithmetic."""
    step = rows.steps(PAPERS, "co/table4", "both")[Path("W/models/cocondenser-marco")]
    estimated = of(step)
    assert estimated.pretraining["v3-8"] == pytest.approx(12552 * 0.825 / 3600 / 0.4, rel=0.01)
    assert estimated.pretraining["H100"] == pytest.approx(3.6, rel=0.05)
    encode = step._replace(commands=[["cocondenser", "encode"]])
    both = of(step, encode._replace(out="W/other"))
    assert both.pretraining == estimated.pretraining
    assert both.others == {"A100": pytest.approx(11.3, rel=0.01), "H100": pytest.approx(3.6, 0.05)}


def test_peaks_are_those_of_the_plan():
    """Of one table: papers/ imports no part of pre-training."""
    cards = {"A100": "a100-80gb", "H100": "h100"}
    peaks = {name: CARDS[card].limits.compute for name, card in cards.items()}
    peaks[estimates.TPU] = 8 * TPUS["v3"].compute
    assert {name: peak * 1e12 for name, peak in peaks.items()} == estimates.PEAKS


def test_cores_are_counted():
    """Exact search: 502,939 queries x 8,841,823 vectors x 768 at 45 GFLOP/s are 42 core hours."""
    searches = {
        path: step.core_seconds / 3600
        for path, step in rows.steps(PAPERS, "co/table1", "cocondenser").items()
        if step.commands and step.commands[0][1] == "retrieve"
    }
    assert len(searches) == 6
    mining = searches[Path("W/msmarco/cocondenser_marco-0/round1-3/train.trec")]
    assert mining == pytest.approx(502_939 * 8_841_823 * 768 * 2 / 45e9 / 3600, rel=0.01)
    assert mining == pytest.approx(42, rel=0.01)
    assert sum(searches.values()) == pytest.approx(70, rel=0.03)
    assert of_row("co/table1", "cocondenser").core_hours > 70


def test_the_disk_holds_all_results_or_what_is_still_needed():
    def vectors(name, *needs):
        return Step(f"W/{name}", [["c"]], needs, done="x", bytes=10, is_temporary=True)

    model = Step("W/model", [["c"]], bytes=1)
    one, two = vectors("one", model), vectors("two", model)
    first = Step("W/first", [["c"]], [one], bytes=2)
    second = Step("W/second", [["c"]], [one], bytes=2)
    third = Step("W/third", [["c"]], [two, first], bytes=3)
    unread = vectors("unread")
    found = of(model, one, first, second, two, third, unread)
    assert found.bytes == 1 + 10 + 2 + 2 + 10 + 3 + 10
    # What a step has only while it runs counts beside what is there.
    working = third._replace(scratch=50)
    assert of(model, one, first, second, two, working).bytes == 1 + 10 + 2 + 2 + 10 + 3 + 50
    assert of(model, one, first, second, working, two).least_bytes == 1 + 2 + 2 + 3 + 50
    # The first vectors go after the second run; the last, which nothing needs, at once.
    assert found.least_bytes == 1 + 2 + 2 + 10 + 3
    assert of(model, one, first, two, second, third).least_bytes == 1 + 10 + 2 + 10 + 2


def test_embeddings_take_a_number_of_bytes_for_each_passage():
    """768 float16 numbers and a text."""
    step = rows.steps(PAPERS, "co/table5", "cocondenser")
    sizes = {path.parent.name: one.bytes for path, one in step.items() if one.is_temporary}
    assert sizes == {"embeddings": pytest.approx(8_841_823 * (1536 + 380), rel=1e-6)}
    assert costs.run_bytes(6_980 * 1000) == pytest.approx(0.31e9, rel=0.02)


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "free_bytes", lambda folder: 100e9)
    found = of_row("co/table1", "cocondenser")
    assert found.bytes > 200e9
    with pytest.raises(UserError, match=r"has 100 GB free, but about 2\d\d GB are needed: choose"):
        require_room(tmp_path / "work", found, deletes=False)
    little = found._replace(bytes=300e9, least_bytes=90e9)
    with pytest.raises(UserError, match="or give --delete_embeddings: then 90 GB are enough"):
        require_room(tmp_path / "work", little, deletes=False)
    require_room(tmp_path / "work", little, deletes=True)
    require_room(tmp_path / "work", found._replace(bytes=99e9), deletes=False)


def test_the_room_is_that_of_the_disk_on_which_a_new_folder_will_be(tmp_path):
    require_free(tmp_path / "not" / "there", 1e3, "")
    with pytest.raises(UserError, match="free, but about 1000000000 GB are needed: buy one"):
        require_free(tmp_path / "not" / "there", 1e18, "buy one")
