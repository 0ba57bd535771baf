"""What files hold cannot control the terminal."""

import re
import subprocess
import sys

from cocondenser_jax.cli import main
from tests.world import write_records


def test_passages_cannot_control_the_terminal(model_folder, tmp_path, capsys):
    attack = "\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\r\n\x9b2J"
    passage = {"_id": "d\x1b[2J", "title": attack, "text": f"abcde {attack}"}
    write_records(tmp_path / "corpus.jsonl", [passage])
    place = [f"--model={model_folder}", f"--corpus={tmp_path}/corpus.jsonl"]
    assert main(["encode", *place, f"--out={tmp_path}/embeddings"]) == 0
    capsys.readouterr()
    place = [f"--model={model_folder}", f"--embeddings={tmp_path}/embeddings"]
    assert main(["search", *place, "--query=abcde\x1b[2J"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed)
    assert len(printed.splitlines()) == 3
    assert r"d\x1b[2J  \x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\x0d\x0a\x9b2J" in printed


def test_log_messages_cannot_control_the_terminal(tmp_path):
    program = (
        "import logging; from cocondenser_jax.cli import main; main([]);"
        " logging.warning('a\\n%s', '\\x1b[2J\\x0b')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.endswith("a\n\\x1b[2J\\x0b\n")
