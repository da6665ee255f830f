# SPDX-License-Identifier: Apache-2.0
"""What is wrong is said, in words and by status, and changes nothing."""

import copy
import pickle

import numpy as np
import pytest

import pagedcl

HEADS, KV_HEADS, DIM = 4, 2, 16
Q = np.ones((3, HEADS, DIM), np.float32)
KV = np.ones((5, KV_HEADS, DIM), np.float32)


def varlen(q=Q, k=KV, v=KV, cu_q=(0, 3), cu_k=(0, 5), **options):
    return pagedcl.flash_attn_varlen_func(q, k, v, list(cu_q), list(cu_k), 3, 5, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"dropout_p": 0.1}, "dropout_p is 0.1"),
        ({"q": Q[0]}, "must have the shape"),
        ({"q": Q.astype(np.float64)}, "float64"),
        ({"k": KV.astype(np.float16)}, "must all be"),
        ({"k": KV[:, :, :8]}, "one head_dim"),
        ({"q": Q[:, :3]}, "a multiple"),
        ({"cu_q": (0, 4)}, "q has 3 rows"),
        ({"cu_k": (0, 6)}, "k has 5 rows"),
        ({"cu_q": (0, 1, 3)}, "batch [+] 1 entries"),
        ({"cu_q": (1, 3)}, "cu_seqlens_q"),
        ({"cu_q": (0, 2, 1), "cu_k": (0, 1, 5)}, "cu_seqlens_q"),
        ({"alibi_slopes": np.ones(3, np.float32)}, "alibi_slopes must be"),
        ({"alibi_slopes": np.ones(HEADS)}, "alibi_slopes must be float32 .4. or .1, 4., not float64 .4."),
        ({"alibi_slopes": np.ones((2, HEADS), np.float32)}, "alibi_slopes must be"),
        ({"q": Q.astype(Q.dtype.newbyteorder())}, "q must be in this machine's byte order"),
        ({"q": Q[:, :0]}, "q has 0 heads"),
        ({"window_size": 4}, "window_size must be .left, right."),
        ({"cu_q": (0, 2.5)}, "cu_seqlens_q must be integers, not float64"),
        ({"cu_q": (0, 1 << 40)}, "cu_seqlens_q must be integers of 32 bits"),
        ({"block_table": [[0]]}, "the caches must have"),
        ({"softmax_scale": 0.0}, "softmax_scale is 0"),
    ],
)
def test_varlen_refuses(call, words):
    with pytest.raises((ValueError, NotImplementedError), match=words):
        varlen(**call)


POOL = np.ones((4, 8, KV_HEADS, DIM), np.float32)
NEW = np.full((2, 1, KV_HEADS, DIM), 9, np.float32)


def kvcache(pool=POOL, q=np.ones((2, 1, HEADS, DIM), np.float32), new=NEW, **options):  # noqa: B008
    k_pool, v_pool = pool.copy(), pool.copy()
    options = {"cache_seqlens": [8, 3], "block_table": [[0, 1], [2, 3]]} | options
    try:
        return pagedcl.flash_attn_with_kvcache(q, k_pool, v_pool, new, new, **options)
    except Exception:
        np.testing.assert_array_equal(k_pool, pool)
        np.testing.assert_array_equal(v_pool, pool)
        raise


def test_kvcache_is_right_when_nothing_is_wrong():
    assert kvcache().shape == (2, 1, HEADS, DIM)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"block_table": [[0, -1], [2, 3]]}, "sequence 0"),
        ({"block_table": [[0, 1], [9, 3]]}, "sequence 1"),
        ({"block_table": [[0, 1], [1, 3]]}, "block 1"),
        ({"block_table": [[0, 1]]}, "block_table must have"),
        ({"cache_seqlens": [16, 3]}, "sequence 0"),
        ({"cache_seqlens": [-1, 3]}, "sequence 0"),
        ({"cache_seqlens": [1]}, "cache_seqlens must have 2"),
        ({"cache_seqlens": [8, 3], "block_table": None}, "1 new tokens go beyond a row of 8 tokens"),
        (
            {"cache_batch_idx": [0, 4], "block_table": None, "cache_seqlens": 1},
            "cache_batch_idx is .*, but the cache has 4",
        ),
        ({"block_table": [[0], [2, 3]]}, "the rows of block_table must have one length"),
        ({"cache_seqlens": None}, "cache_seqlens must say"),
        ({"cache_batch_idx": [0, 1]}, "neither"),
        ({"cache_leftpad": [0, 1], "block_table": None}, "1 new tokens go beyond a row"),
        ({"rotary_cos": np.ones((16, 4), np.float32)}, "go together"),
        (
            {"rotary_cos": np.ones((5, 4), np.float32), "rotary_sin": np.ones((5, 4), np.float32)},
            "at least 9 positions",
        ),
        (
            {
                "q": np.ones((2, 3, HEADS, DIM), np.float32),
                "rotary_cos": np.ones((10, 4), np.float32),
                "rotary_sin": np.ones((10, 4), np.float32),
                "causal": True,
            },
            "at least 11 positions",
        ),
        ({"new": NEW[:, :, :1]}, "k must have the shape"),
        ({"q": np.ones((2, HEADS, DIM), np.float32)}, "q must have the shape"),
        ({"pool": POOL[0]}, "the caches must have"),
        ({"q": np.ones((2, 0, HEADS, DIM), np.float32)}, "seqlen_q is 0"),
    ],
)
def test_kvcache_refuses(call, words):
    with pytest.raises(ValueError, match=words):
        kvcache(**call)


def test_a_read_only_cache_is_refused():
    pool = POOL.copy()
    pool.setflags(write=False)
    with pytest.raises(ValueError, match="writable"):
        pagedcl.flash_attn_with_kvcache(Q[None, :1], pool, pool, NEW[:1], NEW[:1], cache_seqlens=0, block_table=[[0]])


@pytest.mark.parametrize("argument", ["q", "k_cache", "v_cache"])
def test_what_is_no_tensor_is_named(argument):
    tensors = {"q": Q[None], "k_cache": POOL, "v_cache": POOL} | {argument: [1.0]}
    with pytest.raises(TypeError, match=f"{argument} is a list, which is no tensor"):
        pagedcl.flash_attn_with_kvcache(**tensors)


def test_torch_tensors_that_are_elsewhere_are_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="q is a torch tensor on meta"):
        varlen(torch.empty(Q.shape, device="meta"))
    with pytest.raises(ValueError, match="q must be a strided torch tensor"):
        varlen(torch.ones(Q.shape).to_sparse())


def test_integers_that_do_not_fit_are_refused(device):
    """ctypes would take their lower bits."""
    sizes = {"num_blocks": 2, "block_size": 4, "num_kv_heads": KV_HEADS, "head_dim": DIM, "dtype": "float32"}
    with pytest.raises(OverflowError, match="num_blocks is 4294967298"):
        pagedcl.Cache(device, **sizes | {"num_blocks": (1 << 32) + 2})
    with pytest.raises(TypeError, match="num_blocks must be an int, not float"):
        pagedcl.Cache(device, **sizes | {"num_blocks": 2.0})
    cache = pagedcl.Cache(device, **sizes)
    with pytest.raises(OverflowError, match="is 4294967296"):
        cache.write(KV, KV, np.arange(5), layer=1 << 32)
    sequence = pagedcl.Blocks(num_blocks=4, block_size=4).sequence()
    with pytest.raises(OverflowError, match="of pagedcl_blocks_append"):
        sequence.append((1 << 64) + 1)
    assert len(sequence) == 0


def test_a_tree_mask_has_a_length(device):
    sizes = {"num_blocks": 2, "block_size": 4, "num_kv_heads": KV_HEADS, "head_dim": DIM, "dtype": "float32"}
    attention = pagedcl.Attention(device, cache=pagedcl.Cache(device, **sizes), num_heads=HEADS, tree=True)
    with pytest.raises(ValueError, match="tree_mask must have 3 words, not 1"):
        attention.plan_decode([3], [[0]], seqlen_q=3, tree_mask=[7])
    with pytest.raises(ValueError, match="tree_mask must have 66 words, not 3"):
        attention.plan_varlen([0, 33], block_table=[[0]], cache_seqlens=[3], tree_mask=[7, 7, 7])
    attention.plan_decode([3], [[0]], seqlen_q=3, tree_mask=[1, 3, 7])


def test_objects_are_of_one_owner(device):
    first, second = pagedcl.Blocks(num_blocks=4, block_size=4), pagedcl.Blocks(num_blocks=4, block_size=4)
    sequences = first.sequence(), second.sequence()
    with pytest.raises(ValueError, match="another manager"):
        first.table(sequences)
    for wrong in ("gpu", device.context):
        with pytest.raises(TypeError, match="device must be a"):
            pagedcl.Cache(wrong, num_blocks=1, block_size=1, num_kv_heads=1, head_dim=1)
        with pytest.raises(TypeError, match="device must be a"):
            pagedcl.set_default_device(wrong)
    other = pagedcl.Device()
    with pytest.raises(ValueError, match="another OpenCL context"):
        varlen(device.array(Q), other.array(KV), other.array(KV))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_handles_are_not_copied(device, duplicate):
    blocks = pagedcl.Blocks(num_blocks=4, block_size=4)
    for handle in (device, device.empty(3), blocks, blocks.sequence()):
        with pytest.raises(TypeError, match="cannot be copied"):
            duplicate(handle)


def test_errors_carry_status_and_words(device):
    with pytest.raises(pagedcl.Error) as error:
        pagedcl.Device("no such device")
    assert error.value.status == pagedcl.Status.NO_DEVICE
    assert "no such device" in str(error.value)
    with pytest.raises(pagedcl.UnsupportedError) as error:
        pagedcl.Cache(device, num_blocks=1, block_size=1, num_kv_heads=1, head_dim=577)
    assert error.value.status == pagedcl.Status.UNSUPPORTED
    assert "577" in error.value.message
    with pytest.raises(pagedcl.InvalidError) as error:
        pagedcl.Attention(device, num_heads=3, num_kv_heads=2, head_dim=8)
    assert error.value.status == pagedcl.Status.INVALID_HEADS


def test_plans_and_runs_refuse(device):
    attention = pagedcl.Attention(device, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype="float32")
    with pytest.raises(ValueError, match="no batch"):
        attention.plan().run(Q, KV, KV)
    plan = attention.plan_varlen([0, 3], [0, 5])
    with pytest.raises(pagedcl.InvalidError, match="k"):
        plan.run(Q)
    with pytest.raises(ValueError, match="q must be float32"):
        plan.run(Q[:2], KV, KV)
    with pytest.raises(ValueError, match="out must be"):
        plan.run(Q, KV, KV, out=np.empty((3, HEADS, DIM + 1), np.float32))
    with pytest.raises(ValueError, match="lse must have"):
        plan.run(Q, KV, KV, lse=np.empty((HEADS, 3), np.float32))
    with pytest.raises(ValueError, match="go together"):
        plan.run(Q, KV, KV, rotary_sin=np.zeros((5, 4), np.float32))
    with pytest.raises(pagedcl.InvalidError, match="sinks"):
        plan.run(Q, KV, KV, sinks=np.zeros(HEADS, np.float32))
    with pytest.raises(ValueError, match="none of"):
        pagedcl.Attention(device, num_heads=1, num_kv_heads=1, head_dim=8, paths="both")
    np.testing.assert_allclose(plan.run(Q, KV, KV), 1.0)
