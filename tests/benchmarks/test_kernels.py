"""Kernels of a step by part of the network: a trace and a compiled text, both made by hand."""

import pytest

from benchmarks.kernels import PARTS, REST, Kernel, by_part

BACKWARD = "jit(_fun)/while/body/transpose(jvp(Condenser))/Condenser._backbone/layers_3"
PLACES = {
    "custom-call.1": f"{BACKWARD}/layers_3._feed_forward/mlp_in/transpose",
    "fusion.2": f"{BACKWARD}/layers_3._feed_forward/mlp_in/reduce_sum",
    "gemm.3": f"{BACKWARD}/layers_3._attend/bnhq,bnhl->bnql/dot_general",
    "fusion.4": f"{BACKWARD}/layers_3._attend/convert_element_type",
    "gemm.5": f"{BACKWARD}/layers_3._attend/query/bsd,de->bes/dot_general",
    "gemm.6": "jit(_fun)/transpose(jvp(Condenser))/mlm/sv,vd->sd/dot_general",
    "gemm.9": f"{BACKWARD}/layers_3._attend_jointly/bld,de->ble/dot_general",
    "fusion.10": f"{BACKWARD}/layers_3._attend_jointly/pallas_call",
    "fusion.7": f"{BACKWARD}/attention_norm/reduce_sum",
    "fusion.8": "jit(_fun)/cond/branch_1_fun/add",
}
PROGRAM = "".join(
    f'  %{name} = bf16[8]{{0}} fusion(%a), metadata={{op_name="{place}"}}\n'
    for name, place in PLACES.items()
)


def test_the_time_of_kernels_is_summed_by_part():
    kernels = [
        Kernel("custom-call.1", "nvjet_sm90_tst_128x160", 0.004),
        Kernel("fusion.2", "input_reduce_fusion_2", 0.001),
        Kernel("fusion.2", "input_reduce_fusion_2", 0.001),
        Kernel("gemm.3", "gemm_fusion_3", 0.002),
        Kernel("fusion.4", "loop_convert_fusion_4", 0.003),
        Kernel("gemm.5", "void cutlass::Kernel2", 0.005),
        Kernel("gemm.9", "void cutlass::Kernel2", 0.001),
        Kernel("fusion.10", "attend_rows", 0.002),
        Kernel("gemm.6", "gemm_fusion_6", 0.001),
        Kernel("fusion.7", "input_reduce_fusion_7", 0.001),
        Kernel("fusion.8", "wrapped_add", 0.001),
        Kernel("None", "MemcpyD2D", 0.001),
    ]
    rows = {row.pop("part"): [*row.values()] for row in by_part(kernels, PROGRAM)}
    assert [*rows] == [*PARTS, REST]
    assert rows == {
        "feed-forward": pytest.approx([4.0, 2.0, 6 / 23]),
        "attention, linear maps": pytest.approx([6.0, 0.0, 6 / 23]),
        "attention, scores and weights": pytest.approx([2.0, 5.0, 7 / 23]),
        "MLM": pytest.approx([1.0, 0.0, 1 / 23]),
        "layer norms, residuals, embeddings": pytest.approx([0.0, 1.0, 1 / 23]),
        REST: pytest.approx([0.0, 2.0, 2 / 23]),
    }
