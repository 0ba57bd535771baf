"""The names of machines, available before JAX is loaded."""

from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.limits import CARDS, TPUS

# TPU machines by their product names, with their chips; each has one host.
CHIPS = {"v2": "2x2", "v3": "2x2", "v4": "2x2x1", "v5e": "2x4", "v5p": "2x2x1", "v6e": "2x4"}
MACHINES = {f"{name}-8": f"{name}:{chips}" for name, chips in CHIPS.items()}
MOST_GPUS = 8  # of a machine

EXPECTED = (
    f"expected one of {', '.join(MACHINES)}, a slice such as v3:4x4,"
    f" or 1 to {MOST_GPUS} GPUs: {', '.join(f'{name}-{MOST_GPUS}' for name in CARDS)}"
)


def require_machine(name: str) -> None:
    """Raises a UserError for an unknown machine; only libtpu knows the slices of its TPUs."""
    card, _, number = name.rpartition("-")
    if card in CARDS:
        is_known = number in map(str, range(1, MOST_GPUS + 1))
    else:
        generation, colon, _ = MACHINES.get(name, name).partition(":")
        is_known = bool(colon) and generation in TPUS
    if not is_known:
        raise UserError(f"unknown topology {name!r}: {EXPECTED}")
