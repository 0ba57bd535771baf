"""Prints the table of published models in docs/backbones.md: python -m tests.published_table."""

from tests.published import EXACT, ROWS, Case


def published_table() -> str:
    """Returns the table in Markdown, from the records that the tests read."""
    alike: dict[tuple[str, str], list[str]] = {}
    for models, cases in ROWS.items():
        (outcome,) = {_outcome(case) for case in cases.values()}  # else it would take two lines
        alike.setdefault(outcome, []).append(models)
    lines = [("`encode`", "`adapt`", "models"), ("---", "---", "---")]
    lines += [(*outcome, ", ".join(models)) for outcome, models in alike.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _outcome(case: Case) -> tuple[str, str]:
    torch, jax, adapt = case.expected
    if torch != EXACT:
        return f"refused ({jax})", "refused"
    return (
        "PyTorch, JAX" if jax == EXACT else "PyTorch",
        "JAX" if adapt == EXACT else "refused",
    )


if __name__ == "__main__":
    print(published_table(), end="")
