import subprocess
import sys

import pytest

from cocondenser_jax.corpus import pydocs
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import UserError
from tests.lines import whole

TWO = '"""{0}.\n\n    More about {0}.\n    """'


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "inventory"
    for name in ("test", "tests", "testing"):
        (root / name).mkdir(parents=True)
        (root / name / "helper.py").write_text(TWO.format(f"{name} helper"))
    (root / "__init__.py").write_text(
        f"{TWO.format('Inventory')}\nraise RuntimeError('must not be imported')\n"
    )
    (root / "shelf.py").write_text(
        f'''"""One paragraph only."""

class Shelf:
    """A shelf.

    Parameters
    ----------
    width : float

    Examples
    ========
    >>> Shelf(1.0)
    """

    def __len__(self):
        {TWO.format("Length")}

    def _secret(self):
        {TWO.format("Secret")}

    @property
    def width(self):
        {TWO.format("Width")}

    @width.setter
    def width(self, value):
        {TWO.format("Setter")}

async def load():
    {TWO.format("Load")}

def copy_of_load():
    {TWO.format("Load")}
    def inner():
        {TWO.format("Inner")}

def half_a_character():
    """Escapes.

    \\ud800
    """
'''
    )
    (root / "a_broken.py").write_text(f"{TWO.format('Broken')}\ndef (")
    (root / "b_latin.py").write_bytes(b'"""Caf\xe9.\n\nMore.\n"""')
    for name in ("test_shelf", "shelf_test"):
        (root / f"{name}.py").write_text(TWO.format("Test"))
    monkeypatch.syspath_prepend(tmp_path)
    return "inventory"


def test_docstrings_of_a_package_in_order(package):
    assert list(read_docstrings([package])) == [
        ("inventory", "Inventory.\n\nMore about Inventory."),
        (
            "inventory.shelf.Shelf",
            "A shelf.\n\nParameters\nwidth : float\n\nExamples\n>>> Shelf(1.0)",
        ),
        ("inventory.shelf.Shelf.__len__", "Length.\n\nMore about Length."),
        ("inventory.shelf.Shelf.width", "Width.\n\nMore about Width."),
        ("inventory.shelf.Shelf.width#2", "Setter.\n\nMore about Setter."),
        ("inventory.shelf.load", "Load.\n\nMore about Load."),
    ]


def test_a_named_package_must_be_there(package):
    # The last one is compiled.
    for missing in ("no_such_package", "inventory.shelf", "", "_json"):
        with pytest.raises(
            UserError, match=whole(f"pydocs: no package {missing} is installed here")
        ):
            list(read_docstrings([package, missing]))


def test_nothing_that_is_read_is_imported():
    program = (
        "import sys\n"
        "from cocondenser_jax.corpus.pydocs import read_docstrings\n"
        "names = [name for name, _ in read_docstrings(['optax'])]\n"
        "assert 'optax._src.alias.adam' in names, names[:9]\n"
        "assert not {'optax', 'jax', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_usual_packages_that_are_not_installed_are_left_out(package, monkeypatch):
    monkeypatch.setattr(pydocs, "DEFAULT_PACKAGES", ("no_such_package", package))
    assert list(read_docstrings()) == list(read_docstrings([package])) != []


def test_a_package_may_be_one_file(tmp_path, monkeypatch):
    (tmp_path / "single_shelf.py").write_text(f"{TWO.format('Single')}\n")
    monkeypatch.syspath_prepend(tmp_path)
    expected = [("single_shelf", "Single.\n\nMore about Single.")]
    assert list(read_docstrings(["single_shelf"])) == expected
