# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's continuous batching through PagedCL: the tokens of its own attention, which are the golden ones."""

import collections
import functools
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import pagedcl.transformers  # noqa: E402

MODEL = pathlib.Path(__file__).parents[2] / "models" / "kjv-3m"
CASES = json.loads((MODEL / "golden.json").read_text())["cases"]
NEW_TOKENS = 24


def load(implementation):
    return transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, attn_implementation=implementation, dtype=torch.float32
    ).eval()


def generate_batch(model, prompts, **options):
    """Greedy continuations, in the order of the prompts."""
    generation = transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    batching = transformers.generation.ContinuousBatchingConfig(
        num_blocks=128, page_size=16, max_batch_tokens=128, **options
    )
    outputs = model.generate_batch(
        inputs=prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
    )
    return [outputs[name].generated_tokens for name in sorted(outputs, key=lambda name: int(name.rpartition("_")[2]))]


@pytest.fixture
def calls(monkeypatch):
    """How often transformers calls each of the two functions."""
    counts = collections.Counter()

    def counted(name):
        function = getattr(pagedcl.transformers, name)

        @functools.wraps(function)
        def call(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(pagedcl.transformers, name, call)

    counted("flash_attn_varlen_func")
    counted("flash_attn_with_kvcache")
    # transformers looks the functions up once for each implementation.
    monkeypatch.setattr(transformers.modeling_flash_attention_utils, "_loaded_implementation", None)
    return counts


def test_generate_batch_gives_the_same_tokens(calls):
    prompts = [case["prompt_tokens"] for case in CASES if case["prompt_tokens"]]
    expected = generate_batch(load("sdpa"), prompts)
    assert not calls
    name = pagedcl.transformers.register()
    assert pagedcl.transformers.register() == name
    got = generate_batch(load(name), prompts)
    assert got == expected
    # Prefill is varlen; decode goes through block tables, in place, in each of the four layers.
    assert calls["flash_attn_varlen_func"] >= 4
    assert calls["flash_attn_with_kvcache"] >= 4 * (NEW_TOKENS - 1)
    for case, tokens in zip((case for case in CASES if case["prompt_tokens"]), got):
        count = min(NEW_TOKENS, len(case["new_tokens"]))
        assert tokens[:count] == case["new_tokens"][:count]


def test_generate_gives_the_same_tokens():
    """Outside of continuous batching, with and without padding."""
    name = pagedcl.transformers.register()
    rows = [CASES[0]["prompt_tokens"], CASES[1]["prompt_tokens"]]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected, got = (load(implementation).generate(ids, **options).tolist() for implementation in ("sdpa", name))
    assert got == expected
