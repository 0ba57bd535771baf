"""In which number format models compute."""

import pytest
import torch

from cocondenser_jax.retriever.search import models


@pytest.mark.parametrize(
    ("capability", "units", "expected"),
    [
        ("AVX512", {"avx512_bf16": True}, True),
        ("AVX512", {"amx_bf16": True, "avx512_bf16": False}, True),
        ("AVX512", {"avx512_f": True}, False),
        ("AVX2", {"avx512_bf16": True}, False),  # ATEN_CPU_CAPABILITY
    ],
)
def test_a_cpu_computes_in_bfloat16_where_it_has_the_units(
    capability, units, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert models.uses_bfloat16("auto", on_cpu=True) is expected
    assert not models.uses_bfloat16("auto")
    assert models.uses_bfloat16("bfloat16")
    assert not models.uses_bfloat16("float32", on_cpu=True)


@pytest.mark.parametrize("has_it", [True, False])
def test_on_a_gpu_the_cpu_does_not_matter(has_it, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_it)
    monkeypatch.setattr(models, "_cpu_has_bfloat16", lambda: not has_it)
    assert models.uses_bfloat16("auto", on_cpu=True) is has_it
