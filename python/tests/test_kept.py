# SPDX-License-Identifier: Apache-2.0
"""What the two functions keep between calls, by thread, and that nothing of it is ever stale."""

import threading

import numpy as np
import pytest

import pagedcl
from pagedcl import flash_attn

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 32, 24


def decode(seed, k_cache, v_cache, length):
    q = np.random.default_rng(seed).standard_normal((1, 1, HEADS, DIM)).astype(np.float32)
    return pagedcl.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=length)


def pools(seed):
    return np.random.default_rng(seed).standard_normal((2, 1, TOKENS, KV_HEADS, DIM)).astype(np.float32)


def test_a_second_call_builds_nothing(device):
    decode(1, *pools(1), 10)
    before = device.build_stats
    for seed in range(5):
        decode(seed, *pools(seed), 11)
    assert device.build_stats == before


def test_memory_that_changed_or_moved_is_read_anew():
    k_cache, v_cache = pools(1)
    decode(1, k_cache, v_cache, 20)
    v_cache[:] = 4
    np.testing.assert_allclose(decode(1, k_cache, v_cache, 20), 4, rtol=1e-6)
    elsewhere = np.full_like(v_cache, 6)
    np.testing.assert_allclose(decode(1, k_cache.copy(), elsewhere, 20), 6, rtol=1e-6)
    np.testing.assert_allclose(decode(1, k_cache, v_cache, 20), 4, rtol=1e-6)


def test_the_least_recently_used_go_first(monkeypatch):
    monkeypatch.setattr(flash_attn, "_MOST_KEPT", 2)
    kept = flash_attn._Kept()
    made = []
    for key in "abacab":
        kept.get(key, lambda key=key: made.append(key))
    assert made == ["a", "b", "c", "b"]


def test_a_failed_call_leaves_the_next_one_right():
    k_cache, v_cache = pools(2)
    v_cache[:] = 3
    with pytest.raises(ValueError, match="sequence 0"):
        decode(1, k_cache, v_cache, -1)
    np.testing.assert_allclose(decode(1, k_cache, v_cache, TOKENS), 3, rtol=1e-6)


def test_threads_do_not_disturb_each_other():
    expected = {seed: decode(seed, *pools(seed), 5 + seed) for seed in range(4)}
    wrong = []

    def work(seed):
        for _ in range(20):
            if not np.array_equal(decode(seed, *pools(seed), 5 + seed), expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
