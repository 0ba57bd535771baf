"""The documentation: its pages, links and pictures, and words that the project does not use."""

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

import cocondenser_jax as cj
from cocondenser_jax.cli import PROGRAM
from cocondenser_jax.settings import DECLARED_IN, declared_settings

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "figures")]
import build_site  # noqa: E402
import draw  # noqa: E402
import record  # noqa: E402
from svg import NARROW, WIDTH  # noqa: E402

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "examples/*.md", "tpu_scripts/*.md")
    for path in ROOT.glob(pattern)
)


def test_every_page_is_on_the_site():
    assert set(PAGES) - set(build_site.PAGES) == {build_site.CONTENTS}


def test_the_contents_name_every_page():
    contents = (ROOT / build_site.CONTENTS).read_text(encoding="utf-8")
    linked = {
        (ROOT / "docs" / target).resolve().relative_to(ROOT).as_posix()
        for target in re.findall(r"\]\(([^)#]+)", contents)
    }
    assert set(build_site.PAGES) - linked == set()


def test_the_pages_for_sphinx_are_written(tmp_path):
    build_site.stage(tmp_path)
    names = {name for pages in build_site.SECTIONS.values() for name in pages}
    assert {path.stem for path in tmp_path.glob("*.md")} == names | {"index"}
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "](adapt.md)" in index
    assert "](figures/first.svg)" in index
    pages = {name: (tmp_path / f"{name}.md").read_text(encoding="utf-8") for name in names}
    below = {name: page for page, names in build_site.BELOW.items() for name in names}
    for name in names:
        assert f"\n{name}\n" in (pages[below[name]] if name in below else index)
        assert yaml.safe_load(pages[name].split("---\n")[1])["myst"]["html_meta"]["description"]
    assert '<iframe class="report" src="reports/compare.html"' in pages["report"]
    comparing = (tmp_path / "compare.md").read_text(encoding="utf-8")
    fields = yaml.safe_load(comparing.split("---\n")[1])
    assert fields["source"] == "docs/compare.md"
    head = fields["myst"]["html_meta"]
    assert head["property=og:title"] == "Comparing models"
    assert head["description"] == head["property=og:description"]
    assert head["description"].startswith("Which published model is best on my queries")
    laptop = (tmp_path / "adapt_on_a_laptop.md").read_text(encoding="utf-8")
    assert "```python\nMODEL = " in laptop
    api = (tmp_path / "api.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", api, re.MULTILINE) == cj.__all__
    assert api.count("\nExample:\n") == len(cj.__all__) - 1  # UserError is only mentioned


def test_the_page_of_commands_has_every_option_with_its_default():
    page = build_site.commands_page()
    for name, command in PROGRAM.commands.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for option in command.params:
            if option.opts[0] != "overrides":
                assert f"\n| `{option.opts[0]}" in section, (name, option.opts)
    assert "| `--depth N` | 100 |" in page
    assert "may be repeated" in page
    assert page.count("may be repeated; may") == 0
    assert "| `--backend [torch\\|jax]` | torch |" in page
    assert max(map(len, re.findall(r"^cocondenser .*", page, re.MULTILINE))) <= 80


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("data.md#prompts", "data.md#prompts"),
        ("../benchmarks/README.md#memory", "benchmarks.md#memory"),
        ("README.md", "index.md"),
        ("figures/labels.svg", "figures/labels.svg"),
        ("reports/compare.html", "report.md"),
        ("../configs/adapt.py", "https://github.com/cocondenser-jax/cocondenser-jax/blob/main/configs/adapt.py"),
        ("../examples", "https://github.com/cocondenser-jax/cocondenser-jax/tree/main/examples"),
        ("https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
        ("#here", "#here"),
    ],
)  # fmt: skip
def test_links_lead_to_pages_of_the_site_or_to_the_repository(link, expected):
    assert build_site.site_links("docs/adapt.md", f"a [b]({link})") == f"a [b]({expected})"


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"docs/a\.md: none\.md is not in the repository"):
        build_site.site_links("docs/a.md", "[b](none.md)")
    code = "```\n[b](none.md)\n```"
    assert build_site.site_links("docs/a.md", code) == code


def test_a_name_that_the_site_lacks_is_found(tmp_path):
    shown = [f'<dt id="cocondenser_jax.{name}">' for name in cj.__all__[1:]]
    (tmp_path / "api.html").write_text("".join(shown))
    assert list(build_site.missing_names(tmp_path)) == cj.__all__[:1]


@pytest.mark.parametrize("name", draw.PICTURES)
def test_a_picture_is_what_the_program_draws(name):
    drawn = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == draw.PICTURES[name](), "python docs/figures/draw.py"


def test_curves_are_recorded_as_means_of_their_lines(tmp_path):
    for stage, keys in record.KEYS.items():
        folder = tmp_path / "pretraining" / stage
        folder.mkdir(parents=True)
        lines = [{"step": 10 * i, **dict.fromkeys(keys, float(i))} for i in range(1, 11)]
        lines.append({"step": 100, "late_mlm_loss": 1.0})
        folder.joinpath("metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    curves = record.curves_of(tmp_path)
    assert curves["cocondenser"]["contrastive_loss"] == [[30.0, 3.0], [80.0, 8.0]]
    assert curves["condenser"]["probe/positive_mrr"][-1] == [100.0, 10.0]


def test_every_picture_has_one_size_of_text():
    for name in draw.PICTURES:
        drawn = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        width = int(re.search(r' width="(\d+)" height=', drawn)[1])
        assert width in (WIDTH, NARROW)
        assert max(map(float, re.findall(r' x="([\d.]+)"', drawn))) < width, name


def test_the_recorded_probes_are_those_of_the_results():
    stages = json.loads((ROOT / "docs" / "figures" / "quickstart.json").read_text())
    last = [stages[stage]["probe/positive_mrr"][-1][1] for stage in record.KEYS]
    page = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    assert "MRR of {:.2f} after stage 1 and {:.2f} after stage 2 ([curves]".format(*last) in page


def test_the_project_has_one_description():
    description = cj.__doc__.partition("\n")[0]
    for place in ("README.md", "docs/README.md", "CITATION.cff"):
        assert description in (ROOT / place).read_text(encoding="utf-8"), place
    assert PROGRAM.help == build_site.DESCRIPTION == description


def read(page):
    """Returns the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def results(name):
    """Returns the rows of a file of measurements."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_numbers_of_the_first_page_are_those_of_the_result_files():
    page = read("README.md")
    gpu = {(r["part"], r["setting"], r["measure"]): r["value"] for r in results("gpu")}
    chunks = {n: ("step", f"chunks of {n}, bfloat16") for n in (64, 128, 256)}
    rate = {n: gpu[*step, "spans/s"] for n, step in chunks.items()}
    compiled = gpu["PyTorch, compiled", chunks[128][1], "spans/s"]
    gib = {n: gpu[*step, "peak MiB"] / 1024 for n, step in chunks.items()}
    ratios = [row["times PyTorch"] for row in results("step") if row["size"] == "4x256"]
    v3 = re.search(r"^\| v3-8 \| (\S+) \|.* (\S+) \|$", read("docs/plan.md"), re.MULTILINE)
    rows = re.findall(r"^\| as published(?: \+ BM25)? \|(.*)\|$", read("docs/results.md"), re.M)
    alone, fused = ([float(cell.strip(" *")) for cell in row.split("|")] for row in rows[:2])
    gains = [after - before for before, after in zip(alone, fused, strict=True)]
    for words in (
        f"in {gib[64]:.0f} GiB of one GPU",
        f"takes {12_552 * 4_096 / rate[256] / 3_600:.1f} hours on one H200",
        f"{rate[128] / compiled:.1f} times as fast as compiled PyTorch, at"
        f" {100 * gpu[*chunks[128], 'of the matmul peak']:.0f} % of the measured matmul peak",
        f"trains {min(ratios):.1f} to {max(ratios):.1f} times as fast",
        f"takes {4_096 / rate[128]:.2f} s and {gib[128]:.0f} GiB",
        f"needs {float(v3[1]):.1f} of the 16 GiB",
        f"at least {float(v3[2]):.1f} hours",
        f"by −{-min(gains):.2f} to +{max(gains):.2f}",
    ):
        assert words in page, words
    far = {row["run"]: row.get("1 - cosine, largest") for row in results("release_training")}
    assert "agree with the release's to 1e-10 and Condenser's to 8e-5" in page
    assert max(value for run, value in far.items() if "stage 2" in run) < 1.5e-10
    assert 7.5e-5 < far["stage 1 (Condenser)"] < 8.5e-5
    assert "survived 50 kills" in page
    kills = [results("soak")[-1], *results("soak_commands")]
    assert {(row["kills"], row["survived"]) for row in kills} == {(50, 50)}


def test_the_table_of_the_first_page_is_that_of_the_quickstart():
    first, second = (
        re.search(r"```\n( +MRR@10.*?)```", read(page), re.DOTALL)[1]
        for page in ("README.md", "docs/quickstart.md")
    )
    assert first == second


def commands_of(text):
    """Yields the words of each command of the program in a page's blocks."""
    for _, code in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        for line in code.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^|/)cocondenser (.*)", line.strip())
            if found:
                yield shlex.split(found[1], comments=True)


def unknown_flags(words):
    """Returns the flags and settings of a command that it does not have."""
    command = PROGRAM.commands[words.pop(0)]
    known = {name for flag in command.params for name in flag.opts}
    settings = {name for task in DECLARED_IN for name in declared_settings(task)}
    known |= {f"--config.{name}" for name in settings}
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    return given - known - {"--config.KEY"}


def test_the_commands_on_the_pages_have_these_flags():
    commands = [
        (page, words)
        for page in PAGES
        for words in commands_of((ROOT / page).read_text(encoding="utf-8"))
    ]
    assert len(commands) > 40
    assert {(page, *flags) for page, words in commands if (flags := unknown_flags(words))} == set()


# ---- words ----

# American words in -ise come from these roots.
AMERICAN = r"(?:ra|adv|superv|no|prom|prec|w|exerc|surpr|rev|compr|r)"
BRITISH = re.compile(
    rf"\b(?!\w*{AMERICAN}is(?:e[srd]?|ing)\b)\w+is(?:ation|e[srd]?|ing)s?\b"
    r"|\b\w*(?:colour|behaviour|neighbour|labell|modelling|analyse|learnt|favour|artefact)\w*"
    r"|\bcentre\b",
    re.IGNORECASE,
)
HOUSE_WORDS = re.compile(
    r"\bgoes on\b|\bsays so\b|\bsays which\b|\bpaid\b|\bpays off\b|\bfrom that on\b|\bfor ever\b"
    r"|\bis refused in one line\b|\bfor the occasion\b|\bmade anew\b|\bdrawn anew\b"
    r"|\bas proposed\b|\bminutes of (?:one|two|a) (?:busy )?cores?\b"
    r"|\bpeople wrote\b|\bnumbers of (?:a|each|the) vectors?\b|\bcounts as made\b"
    r"|\bin common with\b|\bmachines? that (?:is|are) not there\b",
    re.IGNORECASE,
)


def prose(text):
    """Returns a page without its code, addresses and names of files and modules."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", text)
    return re.sub(r"\S*\w[./=]\w\S*", "", text)


def docstrings(path):
    """Yields the docstrings of a module."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds):
            yield prose(ast.get_docstring(node) or "")


def all_prose():
    """Yields the place and the text of pages, docstrings, help texts and settings."""
    for page in PAGES:
        yield page, prose((ROOT / page).read_text(encoding="utf-8"))
    for notebook in ROOT.glob("examples/*.ipynb"):
        yield notebook.name, prose(build_site.read_page(notebook))
    outside = "papers", "experiments", "benchmarks", "checks"
    code = "cocondenser_jax", "configs", "examples", *outside, "docs"
    for folder in code:
        for path in (ROOT / folder).rglob("*.py"):
            for text in docstrings(path):
                yield path.relative_to(ROOT).as_posix(), text
    for name, command in PROGRAM.commands.items():
        for text in (command.help, *(getattr(flag, "help", "") for flag in command.params)):
            yield name, text or ""
    for task in DECLARED_IN:
        for name, setting in declared_settings(task).items():
            yield f"config.{name}", setting.meaning


@pytest.mark.parametrize("pattern", [BRITISH, HOUSE_WORDS], ids=["British", "house"])
def test_the_prose_has_none_of_these_words(pattern):
    found = {(place, word[0]) for place, text in all_prose() for word in pattern.finditer(text)}
    assert found == set()


def words_of_code(text):
    """Returns the words that names, comments and texts of a module are made of."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text))


def test_names_and_comments_are_american():
    found = set()
    outside = "papers", "experiments", "benchmarks", "checks"
    for folder in ("cocondenser_jax", "configs", *outside, "examples", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == Path(__file__).name:
                continue
            text = words_of_code(path.read_text(encoding="utf-8"))
            place = path.relative_to(ROOT).as_posix()
            found |= {(place, word[0]) for word in BRITISH.finditer(text)}
    assert found == set()


LONGEST = 60  # words
CHAIN = re.compile(r";[^.]*;[^.]*;[^.]*;")
VERB_AFTER_CODE = re.compile(r"^ *```\n\n[a-z]+s ", re.MULTILINE)


def paragraphs(page):
    """Yields the paragraphs and items of a page, without tables and code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (line for line in text.splitlines() if not line.startswith("|"))


def test_no_sentence_is_a_chain():
    pages = [page for page in PAGES if page != "docs/settings.md"]
    found = [
        (page, sentence)
        for page in pages
        for paragraph in paragraphs(page)
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[])", paragraph)
        if len(sentence.split()) > LONGEST or CHAIN.search(sentence)
    ]
    assert found == []


# Words of a page, about 1.15 times what it has: a reminder to take something out, not a wall.
MOST_WORDS = 1_500  # of a new one
MOST_WORDS_OF = {
    "CHANGELOG.md": 1_050,
    "CONTRIBUTING.md": 1_550,
    "README.md": 1_000,
    "benchmarks/README.md": 1_950,
    "docs/README.md": 700,
    "docs/adapt.md": 600,
    "docs/architecture.md": 1_950,
    "docs/backbones.md": 850,
    "docs/compare.md": 1_150,
    "docs/data.md": 1_950,
    "docs/faq.md": 550,
    "docs/fine_tuning.md": 650,
    "docs/install.md": 450,
    "docs/log.md": 1_700,
    "docs/many_machines.md": 1_150,
    "docs/methods.md": 900,
    "docs/plan.md": 1_300,
    "docs/pretrain.md": 850,
    "docs/probe.md": 750,
    "docs/python.md": 1_350,
    "docs/quickstart.md": 500,
    "docs/reliability.md": 750,
    "docs/repeat_the_papers.md": 1_150,
    "docs/results.md": 2_300,
    "docs/search.md": 900,
    "examples/README.md": 200,
    "tpu_scripts/README.md": 1_100,
}


def too_long(words):
    """Returns the pages that have more words than they may have."""
    return {page: n for page, n in words.items() if n > MOST_WORDS_OF.get(page, MOST_WORDS)}


def test_no_page_grows_unnoticed():
    pages = [page for page in PAGES if page != "docs/settings.md"]  # generated
    words = {page: len((ROOT / page).read_text(encoding="utf-8").split()) for page in pages}
    assert too_long(words) == {}


def test_no_block_of_code_is_the_subject_of_a_sentence():
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert [page for page, text in texts.items() if VERB_AFTER_CODE.search(text)] == []
    assert VERB_AFTER_CODE.search("```\nmake test\n```\n\ninstalls everything")


def test_ordinary_words_are_not():
    assert not BRITISH.search("otherwise rise, raise, precise, noise, exercise, promise, likewise")
    assert prose("a\n```\nrandomise\n```\n`colour` [b](analyse.md)\n").split() == ["a", "[b"]
