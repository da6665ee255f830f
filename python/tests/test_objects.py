# SPDX-License-Identifier: Apache-2.0
"""The C objects through Python: what they do, and the laws of the contract."""

import numpy as np
import pytest
import reference

import pagedcl

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 40, 5


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make_cache(device, **options):
    return pagedcl.Cache(
        device,
        **{"num_blocks": 8, "block_size": BLOCK, "num_kv_heads": KV_HEADS, "head_dim": DIM, "dtype": "float32"}
        | options,
    )


def test_devices_are_listed(device):
    names = [info["device_name"] for info in pagedcl.devices()]
    assert device.info["device_name"] in names
    assert device.info["usable"] is True
    assert device.info["tier"] in ("portable", "cpu", "nv_mma", "nv_wgmma")


def test_tier_is_the_chosen_one():
    assert pagedcl.Device(tier="portable").info["tier"] == "portable"


def test_a_tuning_database_that_is_none_is_refused(tmp_path):
    file = tmp_path / "tuning.json"
    file.write_text("nothing of the kind")
    with pytest.raises(pagedcl.Error, match="tuning"):
        pagedcl.Device(tuning=file)


def test_log_is_called():
    lines = []
    device = pagedcl.Device(log=lambda level, text: lines.append((level, text)))
    make_cache(device)
    assert any(level == "info" and "cache " in text for level, text in lines)


def test_build_stats_count(device):
    before = device.build_stats
    make_cache(device, num_blocks=3)
    after = device.build_stats
    assert after["compiled"] + after["loaded"] > before["compiled"] + before["loaded"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_write_and_gather(device, dtype, layout):
    cache = make_cache(device, dtype=dtype, layout=layout, num_layers=2)
    k, v = normal(1, 7, KV_HEADS, DIM, dtype=dtype), normal(2, 7, KV_HEADS, DIM, dtype=dtype)
    slots = [35, 36, 37, 38, 39, 10, 11]  # block 7, then the front of block 2
    cache.write(k, v, slots, layer=1)
    got_k, got_v = cache.gather([[7, 2]], [7], layer=1)
    np.testing.assert_array_equal(got_k, k)
    np.testing.assert_array_equal(got_v, v)
    cache.copy_blocks([(7, 0), (2, 7)])
    np.testing.assert_array_equal(cache.gather([[0, 7]], [7], layer=1)[0], k)
    cache.wipe_blocks([0])
    assert not cache.gather([[0]], [5], layer=1)[1].any()


def test_nbytes_of_the_worked_example(device):
    cache = make_cache(device, num_layers=2, num_blocks=7, block_size=16, num_kv_heads=8, head_dim=128)
    assert cache.nbytes == 2 * 7 * 128 * 1024
    assert cache.desc["dtype"] == "float32"


def test_quantised_pool_gives_values_within_its_step(device):
    cache = make_cache(device, dtype="int8", scale_per_row=True)
    k, v = normal(3, 4, KV_HEADS, DIM), normal(4, 4, KV_HEADS, DIM)
    cache.write(k, v, np.arange(4))
    got, _ = cache.gather([[0]], [4])
    step = np.abs(k).max(axis=2, keepdims=True) / 127
    assert got.dtype == np.float32
    assert (np.abs(got - k) <= step / 2 * 1.001).all()


def test_decode_follows_the_reference(device):
    """Token after token through blocks of a manager, on the host and on the device."""
    cache, blocks = make_cache(device), pagedcl.Blocks(num_blocks=8, block_size=BLOCK)
    attention = pagedcl.Attention(device, cache=cache, num_heads=HEADS, causal=True)
    sequence, plan = blocks.sequence(), attention.plan()
    steps = 12
    q, k, v = normal(5, steps, 1, HEADS, DIM), normal(6, steps, 1, KV_HEADS, DIM), normal(7, steps, 1, KV_HEADS, DIM)
    for step in range(steps):
        assert sequence.append() == []
        plan.decode([step], blocks.table([sequence]), seqlen_new=1)
        lse = np.full((1, HEADS), np.nan, np.float32)
        out = plan.run(q[step], k_new=k[step], v_new=v[step], lse=lse)
        keys, values = (t[: step + 1, 0].astype(np.float64) for t in (k, v))
        expected, expected_lse = reference.attention(q[step].astype(np.float64), keys, values, causal=True)
        np.testing.assert_allclose(out, expected, atol=1e-5)
        np.testing.assert_allclose(lse[0], expected_lse[:, 0], rtol=1e-5, atol=1e-5)
    blocks.check()
    assert blocks.stats["used"] == 3


def test_device_tensors_only_enqueue(device):
    """A run with tensors on the device gives what one with host tensors gives."""
    attention = pagedcl.Attention(device, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype="float32")
    q, k, v = normal(1, 9, HEADS, DIM), normal(2, 11, KV_HEADS, DIM), normal(3, 11, KV_HEADS, DIM)
    plan = attention.plan_varlen([0, 2, 9], [0, 1, 11])
    expected = plan.run(q, k, v)
    out = plan.run(*(device.array(tensor) for tensor in (q, k, v)))
    assert isinstance(out, pagedcl.DeviceArray)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_append_then_attend_with_rotary_sinks_and_slopes(device):
    """Varlen with everything that a run can be given."""
    cache = make_cache(device)
    attention = pagedcl.Attention(
        device, cache=cache, num_heads=HEADS, causal=True, rotary_dim=16, alibi=True, sinks=True, window=(6, -1)
    )
    q, k, v = normal(1, 8, HEADS, DIM), normal(2, 8, KV_HEADS, DIM), normal(3, 8, KV_HEADS, DIM)
    angles = normal(4, 8, 8)
    cos, sin = np.cos(angles), np.sin(angles)
    slopes, sinks = normal(5, HEADS) ** 2, normal(6, HEADS)
    plan = attention.plan_varlen([0, 8], block_table=[[6, 1]], cache_seqlens=[8], append=True)
    lse = np.empty((8, HEADS), np.float32)
    out = plan.run(q, k_new=k, v_new=v, lse=lse, alibi_slopes=slopes, sinks=sinks, rotary_cos=cos, rotary_sin=sin)
    at = np.arange(8)
    q64, k64 = (reference.rotated(t.astype(np.float64), cos, sin, at, False) for t in (q, k))
    plain, plain_lse = reference.attention(
        q64, k64, v.astype(np.float64), causal=True, window=(6, -1), slopes=slopes.astype(np.float64)
    )
    with_sink = np.logaddexp(plain_lse, sinks[:, None])
    np.testing.assert_allclose(lse, with_sink.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out, plain * np.exp(plain_lse - with_sink).T[:, :, None], atol=1e-5)


def test_laws(device):
    """A constant V comes back, one key gives its value, q = 0 gives the mean, and company changes no bit."""
    attention = pagedcl.Attention(device, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype="float32")
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 13, KV_HEADS, DIM), normal(3, 13, KV_HEADS, DIM)
    plan = attention.plan_varlen([0, 5], [0, 13])
    np.testing.assert_allclose(plan.run(q, k, np.full_like(v, 3.0)), 3.0, rtol=1e-6)
    mean = np.repeat(v.mean(axis=0), HEADS // KV_HEADS, axis=0)
    np.testing.assert_allclose(plan.run(np.zeros_like(q), k, v), np.broadcast_to(mean, q.shape), atol=1e-6)
    alone = plan.run(q, k, v)
    one_key = attention.plan_varlen([0, 5], [0, 1]).run(q, k[:1], v[:1])
    np.testing.assert_array_equal(one_key, np.broadcast_to(np.repeat(v[0], HEADS // KV_HEADS, axis=0), q.shape))
    with_others = attention.plan_varlen([0, 5, 9, 14], [0, 13, 20, 33]).run(
        np.concatenate([q, normal(4, 4, HEADS, DIM), q]),
        np.concatenate([k, normal(5, 7, KV_HEADS, DIM), k]),
        np.concatenate([v, normal(6, 7, KV_HEADS, DIM), v]),
    )
    np.testing.assert_array_equal(with_others[:5], alone)
    np.testing.assert_array_equal(with_others[9:], alone)


def test_merged_halves_are_the_whole(device):
    """Keys in two parts, one of which some rows do not see at all."""
    attention = pagedcl.Attention(device, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype="float32")
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 13, KV_HEADS, DIM), normal(3, 13, KV_HEADS, DIM)

    def part(keys, cu_seqlens_k):
        lse = np.empty((5, HEADS), np.float32)
        return attention.plan_varlen([0, 2, 5], cu_seqlens_k).run(q, k[keys], v[keys], lse=lse), lse

    whole, whole_lse = part([*range(6), *range(6, 13)], [0, 6, 13])
    front, behind = part([0, 1, *range(6, 13)], [0, 2, 9]), part(range(2, 6), [0, 4, 4])
    assert (behind[1][2:] == -np.inf).all()
    merge = pagedcl.Merge(device, num_heads=HEADS, head_dim=DIM)
    for sides in (front + behind, behind + front):
        out, lse = merge.run(*sides)
        np.testing.assert_allclose(out, whole, atol=1e-6)
        np.testing.assert_allclose(lse, whole_lse, atol=1e-6)
    with pytest.raises(ValueError, match="LSE must be"):
        merge.run(front[0], front[1][:4], *behind)


def test_order_of_blocks_changes_no_bit(device):
    k, v = normal(1, 12, KV_HEADS, DIM), normal(2, 12, KV_HEADS, DIM)
    q = normal(3, 1, HEADS, DIM)
    results = []
    for table in ([0, 1, 2], [7, 3, 5]):
        cache = make_cache(device)
        attention = pagedcl.Attention(device, cache=cache, num_heads=HEADS, causal=True, paths="decode")
        slots = [table[t // BLOCK] * BLOCK + t % BLOCK for t in range(12)]
        cache.write(k, v, slots)
        results.append(attention.plan_decode([12], [table]).run(q))
    np.testing.assert_array_equal(*results)


def test_blocks_share_and_copy_on_write():
    blocks = pagedcl.Blocks(num_blocks=4, block_size=4)
    parent = blocks.sequence()
    parent.append(6)
    child = parent.fork()
    assert list(child.table()) == list(parent.table())
    assert child.needed(1) == 1
    ((group, source, destination),) = child.append(1)
    assert group == 0
    assert source == parent.table()[1]
    assert destination == child.table()[1] != source
    assert blocks.table([parent, child]).shape == (2, 2)
    assert list(child.slots(5, 2)) == [destination * 4 + 1, destination * 4 + 2]
    child.truncate(4)
    assert len(child) == 4
    child.free()
    with pytest.raises(pagedcl.InvalidError) as refused:
        child.append()
    assert refused.value.status == pagedcl.Status.INVALID_HANDLE
    with pytest.raises(pagedcl.OutOfMemoryError) as full:
        blocks.sequence().append(9)
    assert full.value.status == pagedcl.Status.OUT_OF_BLOCKS
    blocks.check()


def test_prefix_is_found_again():
    blocks = pagedcl.Blocks(num_blocks=8, block_size=4, prefix_cache=True)
    prompt = list(range(10))
    first = blocks.sequence(prompt)
    assert len(first) == 0
    first.append(10)
    first.record(prompt)
    second = blocks.sequence([*prompt[:8], 99, 98])
    assert len(second) == 8
    assert list(second.table()) == list(first.table()[:2])
    assert blocks.stats["hits"] == 1


def test_groups_have_windows_and_tables_of_their_own():
    blocks = pagedcl.Blocks(num_blocks=16, block_size=4, num_groups=2, group_windows=[0, 4])
    sequence = blocks.sequence()
    sequence.append(9)
    sequence.append(9)
    assert (sequence.table(0) >= 0).all()
    assert sequence.table(1)[0] == -1
