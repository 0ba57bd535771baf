"""What all tests share. The environment is set before anything imports JAX or a hub client."""

import contextlib
import ctypes
import gc
import importlib.metadata
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile many tiny programs once each: optimizing them takes three times as long as all else.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if "XLA_FLAGS" not in os.environ:
    # On a busy machine, one of eight devices may wait for the others for more than 40 seconds.
    _flags = "--xla_force_host_platform_device_count=8"
    _flags += " --xla_cpu_collective_call_terminate_timeout_seconds=600"
    _is_fast = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
    if _is_fast and importlib.metadata.version("jaxlib").startswith("0.10."):
        # Code generation of before jaxlib 0.11: a step compiles in two thirds of the time.
        _flags += " --xla_cpu_use_fusion_emitters=false"
        # One module for LLVM instead of many: four fifths of the time.
        _flags += " --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = _flags
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What one test, worker or child process has compiled, the others load: a third less time.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _programs = tempfile.TemporaryDirectory(prefix="cocondenser-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# PyTorch's models are tiny too, and threads that wait for each other steal from the other worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same numbers on every machine: no bfloat16 where it is not asked for.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
# oneDNN does not read that one: PyTorch's attention would ask it for bfloat16's matrix units where
# the CPU has them, and then fail for lack of AVX-512 (torch 2.13).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")


import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

# A shape that is broadcast by accident is an error, here as on the device.
jax.config.update("jax_numpy_rank_promotion", "raise")

pytest_plugins = ["tests.retrieval_data"]
pytest.register_assert_rewrite("tests.recording")  # shows the lines that differ

TEXTS = (
    "The CLS vector has to carry the meaning of the whole passage.",
    "Early layers know the words, late layers know the text.",
    "A span of a document is close to another span of the same document.",
    "Search.",
)
_DURATIONS = "seconds_of_files"  # in the cache of pytest
_SPECIALS = {  # padding first, so that RoBERTa's pad_token_id differs from BERT's
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
_SPECIALS |= {"xlm-roberta": _SPECIALS["roberta"], "modernbert": _SPECIALS["bert"]}
_SPECIALS["mpnet"] = _SPECIALS["roberta"] | {"unk": "[UNK]"}
MODEL_TYPES = tuple(_SPECIALS)


def _seed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:  # whoever draws with it has imported it
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """Escapes what is not UTF-8 in the output of a test: workers cannot send it."""
    return _escaped((yield))


def _escaped(value):
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _escaped(inner) for key, inner in value.items()}
        case list() | tuple():
            return type(value)(map(_escaped, value))
    return value


def pytest_configure(config):
    # Ignored under nohup, and in the background of a shell script; tests send both.
    defaults = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    for number, handler in defaults.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    # pytest-randomly chooses the order of the tests, not what they draw.
    config.option.randomly_reset_seed = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Puts the files first that took longest the last time: no worker begins one at the end.

    Before the first run that is what another machine measured: `tests/seconds.json`, a copy of
    `.pytest_cache/v/seconds_of_files`.
    """
    seconds = json.loads(Path(__file__).with_name("seconds.json").read_text())
    if config.pluginmanager.hasplugin("cacheprovider"):
        seconds |= config.cache.get(_DURATIONS, {})
    # A new file may take long, too.
    items.sort(key=lambda item: -seconds.get(item.location[0], math.inf))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Lets the garbage collector look at what all tests import once, not for 0.7 s at each file."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


def pytest_terminal_summary(terminalreporter, config):
    """Prints which files took longest, and keeps that for the next run."""
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    terminalreporter.section("slowest files")
    for file, duration in seconds.most_common(12):
        terminalreporter.line(f"{duration:8.2f}s {file}")
    if config.pluginmanager.hasplugin("cacheprovider"):
        config.cache.set(_DURATIONS, config.cache.get(_DURATIONS, {}) | seconds)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup():
    """Fixtures of all scopes draw the same, whichever test asks first."""
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    _seed()


@pytest.fixture(scope="module", autouse=True)
def _free_compiled_programs():
    """JAX keeps every program that it compiled, and glibc the memory that is freed: gigabytes."""
    yield
    jax.clear_caches()
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def _same_environment():
    """Undoes what a test, or the code that it calls, sets for later imports.

    Only what differs is written: libc moves the environment when a variable is added, and a
    thread of XLA that reads it at that moment ends the process.
    """
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@pytest.fixture(params=MODEL_TYPES)
def model_type(request):
    return request.param


@pytest.fixture
def texts():
    return list(TEXTS)


@pytest.fixture(scope="session")
def research_folders(tmp_path_factory):
    """Small random models, written by transformers and torch alone: {model type: folder}.

    Layout of the published research checkpoints: a Hugging Face folder, and the two layers of the
    Condenser head in `model.pt`.
    """
    import torch
    import transformers
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer
    from transformers.models.mpnet.modeling_mpnet import MPNetLayer
    from transformers.models.roberta.modeling_roberta import RobertaLayer
    from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLayer

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 93,  # more than the tokenizer has
    }
    of_bytes = {"vocab_size": 349}  # of byte-level tokenizers, which know every byte
    roberta = {"max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    modern = {"max_position_embeddings": 24, "local_attention": 6, "global_attn_every_n_layers": 2}
    modern |= {f"{role}_token_id": None for role in ("bos", "eos", "cls", "sep")}
    kinds = {
        "bert": ("Bert", BertLayer, {"max_position_embeddings": 24}),
        "roberta": ("Roberta", RobertaLayer, roberta | of_bytes),
        "xlm-roberta": ("XLMRoberta", XLMRobertaLayer, roberta),
        "modernbert": (
            "ModernBert",
            ModernBertEncoderLayer,
            modern | of_bytes | {"pad_token_id": 0},
        ),
        "mpnet": ("MPNet", MPNetLayer, {"max_position_embeddings": 26, "layer_norm_eps": 1e-5}),
    }
    folders = {}
    for kind, (name, layer_class, extra) in kinds.items():
        folder = tmp_path_factory.mktemp(kind)
        _write_tokenizer(kind, folder)
        config = getattr(transformers, f"{name}Config")(**sizes | extra)
        lm = getattr(transformers, f"{name}ForMaskedLM")(config)
        options = ()
        if kind == "modernbert":  # like a third layer: it sees all tokens, and has both LayerNorms
            options = (type(config)(**sizes | extra | {"num_hidden_layers": 3}), 2)
        head = torch.nn.ModuleList(layer_class(*(options or (config,))) for _ in range(2))
        generator = torch.Generator().manual_seed(7)
        for module in (lm, head):
            for name, parameter in module.named_parameters():
                # Wider than at initialization, and biases too: every tensor must matter.
                scale, shift = (0.1, 1.0) if "norm.weight" in name.lower() else (0.2, 0.0)
                parameter.data.normal_(shift, scale, generator=generator)
        lm.save_pretrained(folder)
        state = {f"c_head.{name}": value for name, value in head.state_dict().items()}
        torch.save(state, folder / "model.pt")
        folders[kind] = folder
    return folders


def _write_tokenizer(kind, folder):
    """Writes a small tokenizer of the kind that published models of this type have."""
    from transformers import PreTrainedTokenizerFast

    special = _SPECIALS[kind]
    if kind in ("bert", "mpnet"):
        # Listed, not learned: tokenizers' WordPiece trainer breaks ties by chance (0.23.3,
        # https://github.com/huggingface/tokenizers/issues/1794).
        words = sorted({word for text in TEXTS for word in text.rstrip(".").split()})
        letters = sorted({".", *"".join(words)})
        inner = sorted({f"##{letter}" for word in words for letter in word[1:]})
        pieces = [*special.values(), *letters, *inner, *(word for word in words if len(word) < 7)]
        vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "xlm-roberta":
        pieces = sorted({piece for text in TEXTS for piece in (*text, *text.split())} - {" "})
        pieces = [*special.values(), "▁", *pieces, *(f"▁{piece}" for piece in pieces)]
        scores = [(piece, -float(len(pieces) - n)) for n, piece in enumerate(pieces)]
        tokenizer = Tokenizer(models.Unigram(scores[:90], unk_id=3))
        tokenizer.normalizer = normalizers.NFKC()
        steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token=special["unk"]))
        if kind == "modernbert":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=90 + 256,
            special_tokens=list(special.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
    ends = [(special[name], tokenizer.token_to_id(special[name])) for name in ("sep", "cls")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in special.items()}
    ).save_pretrained(folder)


@pytest.fixture
def research_folder(research_folders, model_type):
    return research_folders[model_type]


@pytest.fixture
def spans(model_type):
    """Three right-padded spans, one of the greatest length: ids, attention mask, positions."""
    rng = np.random.default_rng(3)
    lengths_B = np.array([24, 13, 5])
    pad_token_id = list(_SPECIALS[model_type]).index("pad")
    mask_BxL = np.arange(24)[None] < lengths_B[:, None]
    ids_BxL = np.where(mask_BxL, rng.integers(5, 80, mask_BxL.shape), pad_token_id)
    positions_BxM = np.stack([1 + rng.permutation(length - 1)[:4] for length in lengths_B])
    return ids_BxL.astype(np.int32), mask_BxL, positions_BxM.astype(np.int32)


@pytest.fixture
def trains_on_two_gpus(monkeypatch):
    """Makes transformers divide batches among two GPUs unless it is told otherwise."""
    from transformers import TrainingArguments

    setup = TrainingArguments._setup_devices.func

    def with_two_gpus(self):
        device = setup(self)
        self._n_gpu = 2
        return device

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(with_two_gpus))


@pytest.fixture
def one_length(monkeypatch):
    """Lets chunks have their full length."""
    from tests.world import compute_full_lengths

    compute_full_lengths(monkeypatch.setattr)


@pytest.fixture
def small_disk():
    """Gives a function after which no file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def hold():
    """Gives a function that starts another process, which holds a folder until the test ends."""
    code = "import sys, pathlib; from cocondenser_jax.files.runs import lock_folder\n"
    code += "with lock_folder(pathlib.Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    with contextlib.ExitStack() as stack:

        def start(folder):
            pipe = subprocess.PIPE
            command = [sys.executable, "-c", code, str(folder)]
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            stack.callback(process.communicate)
            assert process.stdout is not None
            process.stdout.readline()
            return process

        yield start
