"""What is read of the text of a compiled step."""

import pytest

from cocondenser_jax.plan.compiled import (
    Collective,
    collectives,
    find_launches,
    moved_bytes,
    n_bytes,
    n_launches,
    written_bytes,
)

GATHER = "%x.3 = f32[512,256]{1,0:T(8,128)} all-gather(%y), channel_id=1, dimensions={0}"
REDUCE = (
    "%z = (f32[]{:T(256)}, bf16[8,2]{1,0}, /*index=2*/f32[4]{0}) all-reduce-start(%a, %b, %c)\n"
    "%w = (f32[]{:T(256)}, bf16[8,2]{1,0}, f32[4]{0}) all-reduce-done(%z)"
)
# On a GPU an exchange that is started names what it reads, then what it gives.
STARTED = (
    "%g = ((f32[2,3]{1,0}, s32[2]{0}), (f32[16,3]{1,0}, s32[16]{0})) all-gather-start(%a, %b)\n"
    "%h = (f32[16,3]{1,0}, s32[16]{0}) all-gather-done(%g)\n"
    "%r = ((f32[16,3]{1,0}), f32[2,3]{1,0}) reduce-scatter-start(%h)\n"
    "%s = f32[2,3]{1,0} reduce-scatter-done(%r)"
)
STEP = """
HloModule jit__fun, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%short (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %one = f32[4]{0} fusion(%p), kind=kLoop, calls=%fused, metadata={op_name="short"}
}

%long (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %product = (f32[8,8]{1,0}, s8[33554432]{0}) custom-call(%p), \
custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(f)/attend/dot_general"}
  %first = f32[8,8]{1,0} get-tuple-element(%product), index=0
  %softmax = (bf16[8,8]{1,0}, /*index=1*/f32[8]{0}) fusion(%first), kind=kCustom, calls=%c, \
backend_config={"fusion_backend_config":{"kind":"__triton"}}
  ROOT %copied = f32[4]{0} copy(%p)
}

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], f32[4]{0}) parameter(0)
  %next = s32[] fusion(%i), kind=kLoop, calls=%increment
  %chunk = f32[4]{0} conditional(%which, %x, %x), branch_computations={%short, %long}
  ROOT %out = (s32[], f32[4]{0}) tuple(%next, %chunk)
}

ENTRY %main.0_spmd (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %loop = (s32[], f32[4]{0}) while(%tuple), condition=%until, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %replica = u32[] replica-id()
  %partition = u32[] partition-id()
  %reduced = f32[4]{0} all-reduce-start(%y), to_apply=%add
  ROOT %done = f32[4]{0} all-reduce-done(%reduced)
}
""".replace("\\\n", "")


def test_collectives_are_read_with_type_and_bytes():
    assert collectives(f"{GATHER}\n%d = f32[2]{{0}} add(%a, %b)\n{REDUCE}") == [
        Collective("all-gather", "f32", 4 * 512 * 256),
        Collective("all-reduce", "bf16", 4 + 2 * 16 + 4 * 4),
    ]
    assert collectives(STARTED) == [
        Collective("all-gather", "f32", 4 * 16 * 3 + 4 * 16),
        Collective("reduce-scatter", "f32", 4 * 16 * 3),
    ]


def test_launches_are_counted_as_often_as_they_happen():
    """A loop's body three times, with its longer branch; names, groups and ends launch nothing."""
    step, chunks = find_launches(STEP)
    kinds = [launch.kind for launch in step]
    assert kinds == ["fusion", "cuBLAS", "Triton", "copy", "all-reduce"]
    assert [launch.times for launch in step] == [3, 3, 3, 3, 1]
    assert n_launches(step) == 13
    assert written_bytes(step) == 3 * (4 + 256 + 160 + 16) + 16
    assert moved_bytes(step) == written_bytes(step) + 3 * (16 + 256 + 16)
    assert [n_launches(chunk) for chunk in chunks] == [4]


def test_a_launch_knows_what_it_writes_and_for_what():
    product, softmax = find_launches(STEP).step[1:3]
    assert product.name == "jit(f)/attend/dot_general"
    assert product.arrays == [("f32", (8, 8))]  # without cuBLAS's workspace
    assert softmax.arrays == [("bf16", (8, 8)), ("f32", (8,))]
    assert sum(n_bytes(*array) for array in softmax.arrays) == 2 * 64 + 4 * 8
    assert n_bytes("pred", (3, 5)) == 15
    call = 'custom-call(%first), custom_call_target="__gpu$xla.gpu.triton"'  # of a kernel of Pallas
    called = STEP.replace("fusion(%first)", call).replace('"kind":"__triton"', "")
    assert find_launches(called).step[2] == softmax


def test_a_loop_whose_turns_are_not_known_counts_once():
    unknown = STEP.replace('backend_config={"known_trip_count":{"n":"3"}}', "")
    assert unknown != STEP
    step, chunks = find_launches(unknown)
    assert [launch.times for launch in step] == [1] * 5
    assert [n_launches(chunk) for chunk in chunks] == [4]


@pytest.mark.parametrize(
    "operation", ["all-gather-done", "bitcast", "constant", "reduce-scatter-done"]
)
def test_what_only_names_or_ends_something_launches_nothing(operation):
    line = f"  %none = f32[4]{{0}} {operation}(%x)\n"
    step = find_launches(STEP.replace("  %replica = ", f"{line}  %replica = ")).step
    assert n_launches(step) == 13
