"""How many tokens a model reads of a text."""

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.search.lengths import require_lengths


def test_a_length_fits_up_to_the_positions_of_the_network(model_folder, make_model):
    require_lengths([open_network(model_folder)], {"--max_length": 64, "--other": None})
    roberta = make_model("Roberta")  # its positions start behind that of padding
    require_lengths([open_network(roberta)], {"--max_length": 63})
    with pytest.raises(UserError, match=r"^--max_length=64: expected 3 to 63"):
        require_lengths([open_network(roberta)], {"--max_length": 64})
    with pytest.raises(UserError, match=r"^--max_length=7: expected 8 to 63"):
        require_lengths([open_network(roberta)], {"--max_length": 7}, least=8)
