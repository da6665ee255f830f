# SPDX-License-Identifier: Apache-2.0
"""The runner of FlashAttention's tests, on a small file of their kind: what it runs, leaves out, skips and fails."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

RUNNER = pathlib.Path(__file__).with_name("flash_attention_peer.py")
TESTS = """
import pytest
import torch
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func, flash_attn_with_kvcache
from flash_attn.bert_padding import pad_input

is_sm80 = torch.cuda.get_device_capability("cuda") == (8, 0)


@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 5), (3, 4)])
def test_flash_attn_output(seqlen_q, seqlen_k, dropout_p):
    device = "cuda"
    q = torch.randn(2, seqlen_q, 4, 16, device=device, requires_grad=True)
    k, v = (torch.randn(2, seqlen_k, 2, 16, device=device, requires_grad=True) for _ in range(2))
    out, lse, _ = flash_attn_func(q, k, v, dropout_p, return_attn_probs=True)
    if is_sm80:
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), out)
        print(dq.shape)
    assert out.shape == q.shape and lse.shape == (2, 4, seqlen_q)
    assert out.device.type == device
    assert dq.abs().max() < 1


def test_flash_attn_varlen_values():
    q, kv = torch.zeros(3, 4, 16, device="cuda"), torch.randn(5, 2, 2, 16, device="cuda")
    cu = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([0, 5], dtype=torch.int32)
    out = flash_attn_varlen_kvpacked_func(q, kv, *cu, 3, 5)
    torch.testing.assert_close(out[:, 0], kv[:, 1, 0].mean(0).expand(3, 16))


def test_flash_attn_kvcache_wrong():
    cache = torch.zeros(1, 8, 2, 16)
    assert flash_attn_with_kvcache(torch.zeros(1, 1, 4, 16), cache, cache, cache_seqlens=8).sum() == 1


def test_flash_attn_bwd_something():
    flash_attn_func(None, None, None)


def test_of_something_else():
    assert False
"""


def run(clone, *arguments):
    command = [sys.executable, RUNNER, clone, "--quiet", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = re.findall(r"(\d+) (passed|failed|skipped)", result.stdout.splitlines()[-1] if result.stdout else "")
    return {outcome: int(count) for count, outcome in counts}, result


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    (folder / "tests").mkdir()
    (folder / "flash_attn").mkdir()
    (folder / "flash_attn" / "bert_padding.py").write_text("def pad_input(): pass\n")
    (folder / "tests" / "test_flash_attn.py").write_text(TESTS)
    return folder


def test_all(clone):
    counts, result = run(clone)
    assert counts == {"passed": 3, "failed": 1, "skipped": 2}, result.stdout
    assert result.returncode == 1
    assert "dropout_p is 0.17" in result.stdout


def test_a_sample(clone):
    counts, result = run(clone, "--sample", "2", "--seed", "3")
    assert sum(counts.values()) == 2 + 1 + 1, result.stdout
    assert re.search("^test_flash_attn_output, 4 points: . passed, 0 failed, . skipped$", result.stdout, re.MULTILINE)


def test_no_time(clone):
    counts, result = run(clone, "--seconds", "0")
    assert not counts
    assert "6 points not run" in result.stdout
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_no_clone(tmp_path):
    counts, result = run(tmp_path)
    assert not counts
    assert result.returncode == 2
    assert "must be a clone" in result.stderr
