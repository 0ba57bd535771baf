"""The protocol of a study, fixed before it ran, and its checksum.

A .yaml file of experiments/ may declare a `protocol`. Every measured row of its tables records the
protocol's checksum, and so does the working folder. If either records another one, nothing is
added, since results of different protocols must not share a table.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_object, write_json
from papers.steps import Folders
from papers.tables import load_files

FOLDER = Path(__file__).parent


def checksum(protocol: Mapping[str, Any]) -> str:
    """Returns 12 hexadecimal digits of the SHA-256 of a protocol's values, in any order."""
    text = json.dumps(protocol, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def require_protocol(table: str, folders: Folders, folder: Path = FOLDER) -> None:
    """Records the protocol of a table's file in the working folder; refuses another one.

    Args:
      table: the table's name, such as `design/arms`; tables without a protocol pass.
      folders: the working folder records the protocol in, for example, `design/protocol.json`.
      folder: the folder of the .yaml files.

    Raises:
      UserError: if a row or the working folder records another protocol.
    """
    study = table.partition("/")[0]
    content = load_files(folder)[study]
    if "protocol" not in content:
        return
    current = checksum(content["protocol"])
    for name, of_table in content["tables"].items():
        for row, figures in of_table["rows"].items():
            _require_same(f"row {row!r} of {study}/{name}", figures.get("protocol"), current)
    file = _file(study, folders)
    begun = read_object(file, {})
    _require_same(f"{file.parent}", begun.get("sha256"), current)
    if not begun:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"sha256": current, **content["protocol"]})


def protocol_file(table: str, folders: Folders) -> list[Path]:
    """Returns the file that records the protocol of a table's working folder, if any."""
    file = _file(table.partition("/")[0], folders)
    return [file] if file.exists() else []


def _file(study: str, folders: Folders) -> Path:
    return folders.work / study / "protocol.json"


def _require_same(what: str, recorded: str | None, current: str) -> None:
    if recorded not in (None, current):
        raise UserError(
            f"{what} was measured by protocol {recorded}, which is now {current}: restore it, or"
            " begin again with another --workdir and without the old rows"
        )
