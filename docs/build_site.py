"""Builds the documentation site: python docs/build_site.py [OUT].

Sphinx reads a copy of the pages, made here: of this folder, of others in the repository and of the
notebooks. Links to pages of the site stay links between pages; links to other files of the
repository lead to GitHub. A link to a file that does not exist, a warning of Sphinx, or a public
name that no page shows ends the build with an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import yaml

import cocondenser_jax
from cocondenser_jax.cli import PROGRAM

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Section of the navigation → name of a page on the site → its source in the repository.
SECTIONS = {
    "Start": {
        "install": "docs/install.md",
        "quickstart": "docs/quickstart.md",
        "examples": "examples/README.md",
        "adapt_on_a_laptop": "examples/adapt_on_a_laptop.ipynb",
        "tpu_notebook": "examples/pretrain_on_a_tpu.ipynb",
    },
    "Pre-training": {
        "pretrain": "docs/pretrain.md",
        "plan": "docs/plan.md",
        "tpu_vm": "tpu_scripts/README.md",
        "probe": "docs/probe.md",
        "methods": "docs/methods.md",
    },
    "Retrieval": {
        "fine_tuning": "docs/fine_tuning.md",
        "searching": "docs/search.md",
        "compare": "docs/compare.md",
        "report": "",
        "adapt": "docs/adapt.md",
        "many_machines": "docs/many_machines.md",
    },
    "Reference": {
        "commands": "",
        "settings": "docs/settings.md",
        "python": "docs/python.md",
        "api": "",
        "data": "docs/data.md",
        "backbones": "docs/backbones.md",
    },
    "Results": {
        "results": "docs/results.md",
        "log": "docs/log.md",
        "repeat_the_papers": "docs/repeat_the_papers.md",
        "benchmarks": "benchmarks/README.md",
    },
    "Project": {
        "architecture": "docs/architecture.md",
        "reliability": "docs/reliability.md",
        "contributing": "CONTRIBUTING.md",
        "changelog": "CHANGELOG.md",
        "faq": "docs/faq.md",
    },
}
# Page → those that the navigation shows below it, once it is opened.
BELOW = {
    "examples": ("adapt_on_a_laptop", "tpu_notebook"),
    "plan": ("tpu_vm",),
    "compare": ("report",),
    "python": ("api",),
    "results": ("log",),
}
PAGES = {"README.md": "index"} | {
    source: name for pages in SECTIONS.values() for name, source in pages.items() if source
}
DESCRIPTION = (cocondenser_jax.__doc__ or "").partition("\n")[0]
CONTENTS = "docs/README.md"  # the navigation as a page, for readers on GitHub
REPORT = "docs/reports/compare.html"  # that `compare` wrote; a page of the site shows it
LINK = re.compile(r"(?P<before>\]\(|src=\")(?P<target>[^)\s\"]+)(?=[)\"])")


def stage(folder: Path) -> None:
    """Writes the pages that Sphinx reads, with the links of the site.

    Raises:
      ValueError: if a page links to a file that is not in the repository.
    """
    shutil.copytree(DOCS / "figures", folder / "figures", ignore=shutil.ignore_patterns("*.py"))
    for source, name in PAGES.items():
        text = site_links(source, read_page(ROOT / source))
        head = f"source: {source}\n" + _meta(text, description_of(source))
        page = f"---\n{head}---\n\n{text}{_navigation(name)}"
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
    generated = {"commands": commands_page(), "api": api_page(), "report": report_page()}
    for name, text in generated.items():
        page = f"---\n{_meta(text, GENERATED[name])}---\n\n{text}"
        (folder / f"{name}.md").write_text(page, encoding="utf-8")


# What search engines and links show of the pages that are made here.
GENERATED = {
    "commands": "What does each command do, and which options does it have?",
    "api": "What are the arguments, results and errors of each public function?",
    "report": "What does a comparison of embedding models on one's own queries look like?",
}


def description_of(source: str) -> str:
    """Returns what the contents say of a page."""
    if PAGES[source] == "index":
        return DESCRIPTION
    target = os.path.relpath(ROOT / source, ROOT / "docs").replace(os.sep, "/")
    contents = (ROOT / CONTENTS).read_text(encoding="utf-8")
    (words,) = re.findall(rf"\({re.escape(target)}\) \| (.*) \|", contents)
    return str(words)


def _meta(text: str, words: str) -> str:
    """Returns the part of a page's head that search engines and links to the page show."""
    (title,) = re.findall(r"\A# (.*)", text)
    # What a link to the page shows where it is posted, by the Open Graph protocol.
    meta = {
        "description": words,
        "property=og:description": words,
        "property=og:title": title,
        "property=og:site_name": "cocondenser_jax",
    }
    lines = "".join(f"    {json.dumps(key)}: {json.dumps(text)}\n" for key, text in meta.items())
    return f"myst:\n  html_meta:\n{lines}"


def site_links(source: str, text: str) -> str:
    """Returns the text of a page of the repository with the links of the site."""
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for i in range(0, len(blocks), 2):
        blocks[i] = LINK.sub(
            lambda link: link["before"] + _site_link(source, link["target"]), blocks[i]
        )
    return "".join(blocks)


def _site_link(source: str, target: str) -> str:
    if re.match(r"\w+:|#", target):
        return target
    path, _, anchor = target.partition("#")
    place = (ROOT / source).parent.joinpath(path).resolve()
    if not place.exists():
        raise ValueError(f"{source}: {target} is not in the repository")
    found = place.relative_to(ROOT).as_posix()
    if found == CONTENTS:
        return "index.md"
    if found == REPORT:
        return "report.md"
    if found in PAGES:
        return f"{PAGES[found]}.md" + (f"#{anchor}" if anchor else "")
    if found.startswith("docs/figures/"):
        return found.removeprefix("docs/")
    return f"{repository()}/{'tree' if place.is_dir() else 'blob'}/main/{found}"


def repository() -> str:
    """Returns the address of the repository."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return str(citation["repository-code"])


def read_page(path: Path) -> str:
    """Reads a page, or a notebook as one: its text, its code and what that printed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    texts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        texts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join("".join(out.get("text", "")) for out in cell.get("outputs", []))
        if printed:
            texts.append(f"```text\n{printed.rstrip()}\n```")
    link = f"*This page is a notebook: [{path.name}]({path.name}).*"
    return "\n\n".join([texts[0], link, *texts[1:]]) + "\n"


def _navigation(name: str) -> str:
    """Returns the part of the navigation that a page has: the first page the sections."""
    if name in BELOW:
        return _toctree(BELOW[name])
    if name != "index":
        return ""
    below = {page for pages in BELOW.values() for page in pages}
    parts = []
    for section, pages in SECTIONS.items():
        shown = [page for page in pages if page not in below]
        if section == "Project":
            shown.append(f"Source code <{repository()}>")
        parts.append(_toctree(shown, f":caption: {section}\n"))
    return "".join(parts)


def _toctree(names: Iterable[str], options: str = "") -> str:
    lines = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n{options}\n{lines}\n```\n"


def report_page() -> str:
    """Returns the page that shows the report."""
    return (
        "# A report of compare\n\n"
        "What [`compare`](compare.md#what-changes-for-whom) wrote about two models and BM25, on"
        ' scipy\'s docstrings. <a href="reports/compare.html">Open it alone.</a>\n\n'
        '<iframe class="report" src="reports/compare.html" title="report.html"></iframe>\n'
    )


COMMANDS = """# Commands

Generated from the program. Wherever a command takes a model, give a local folder or a Hugging Face
Hub name. Any [setting](settings.md) can be changed: `--config.train.chunk_size=32`. Invalid input
prints one line and exits with status 2.
"""


def commands_page() -> str:
    """Returns the reference of the commands: an example of each, and its options with defaults."""
    parts = [COMMANDS]
    for name, command in PROGRAM.commands.items():
        context = click.Context(command, info_name=name, **PROGRAM.context_settings)
        example = str(command.epilog).rpartition("example:\n")[2].strip()
        options = [option for option in command.params if isinstance(option, click.Option)]
        parts.append(f"\n## {name}\n\n{command.help}\n\n```bash\n{example}\n```\n\n")
        parts.append("| option | default | meaning |\n|---|---|---|\n")
        parts += [_option(option, context) for option in options]
        if len(options) < len(command.params):
            parts.append("| `--config.KEY=VALUE` | | changes a [setting](settings.md) |\n")
    return "".join(parts)


def _option(option: click.Option, context: click.Context) -> str:
    extra = option.get_help_extra(context)
    default = "required" if option.required else extra.get("default", "")
    kind = "" if option.is_flag else f" {option.make_metavar(context)}"
    meaning = option.help or ""
    said = re.search(r" \((?:default|default, \w+): (.+?)\)$", meaning)
    if said and not default:
        default, meaning = said[1], meaning[: said.start()]
    if option.multiple and "may be repeated" not in meaning:
        meaning += "; may be repeated"
    kind = kind.replace("|", "\\|")
    return f"| `{option.opts[0]}{kind}` | {default} | {_escaped(meaning)} |\n"


def _escaped(text: str) -> str:
    """Returns plain text as Markdown that shows it."""
    return re.sub(r"([*_<|\[])", r"\\\1", text)


def api_page() -> str:
    """Returns the reference of the public names, each with the example that uses it first."""
    parts = [
        "# Python API\n\nThe names in `cocondenser_jax.__all__`, generated from their docstrings. "
        "The examples come from [](python.md), where they run one after another.\n"
    ]
    examples = re.findall(
        r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for name in cocondenser_jax.__all__:
        kind = "function" if name.islower() else "class"  # imports neither JAX nor PyTorch
        directive = f".. auto{kind}:: cocondenser_jax.{name}"
        if kind == "class":
            directive += "\n   :members:"
        parts.append(f"\n## {name}\n\n```{{eval-rst}}\n{directive}\n```\n")
        example = next((text for text in examples if f"cj.{name}" in text), "")
        if example:
            parts.append(f"\nExample:\n\n```python\n{example}```\n")
    return "".join(parts)


def missing_names(site: Path) -> Iterator[str]:
    """Yields the public names that the site does not show."""
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in cocondenser_jax.__all__:
        if f'id="cocondenser_jax.{name}"' not in text:
            yield name


def main() -> None:
    """Builds the site in the folder that the command line names."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    staged = out.parent / f"{out.name}-pages"
    for folder in (out, staged):
        shutil.rmtree(folder, ignore_errors=True)
    staged.mkdir(parents=True)
    stage(staged)
    strict = ["--fail-on-warning", "--keep-going", "--quiet"]
    program = [sys.executable, "-m", "sphinx", *strict, "-c", str(DOCS)]
    if subprocess.run([*program, str(staged), str(out)]).returncode:
        sys.exit("the site was not built: Sphinx's warnings are above")
    shutil.copytree(ROOT / Path(REPORT).parent, out / "reports")
    missing = list(missing_names(out))
    if missing:
        sys.exit(f"not in the API reference: {', '.join(missing)}")
    print(out / "index.html")


if __name__ == "__main__":
    main()
