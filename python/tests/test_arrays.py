# SPDX-License-Identifier: Apache-2.0
"""Tensors of other packages: seen where they are, not copied, whatever their strides."""

import array

import numpy as np
import pytest
import reference

import pagedcl
from pagedcl import arrays

HEADS, KV_HEADS, DIM = 4, 2, 24


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def attend(q, k, v, **options):
    return pagedcl.flash_attn_varlen_func(q, k, v, [0, len(q)], [0, len(k)], len(q), len(k), causal=True, **options)


def expect(out, q, k, v):
    expected, _ = reference.attention(*(np.asarray(t, np.float64) for t in (q, k, v)), causal=True)
    np.testing.assert_allclose(out, expected, atol=1e-5)


class OnlyDLPack:
    """A tensor of some package that speaks DLPack and nothing else."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __dlpack__(self):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_views_see_the_memory_itself():
    values = normal(1, 3, 4)
    for tensor in (values, OnlyDLPack(values), memoryview(values)):
        seen = arrays.view(tensor)
        assert seen.shape == (3, 4)
        assert seen.dtype == "float32"
        assert seen.address == values.ctypes.data
        np.testing.assert_array_equal(seen.numpy(), values)
    assert arrays.view(array.array("f", [1, 2])).shape == (2,)


def test_torch_tensors_are_seen_too():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.randn(5, 7).to(dtype)[1:, ::2]
        for seen in (arrays.view(tensor), arrays.view(OnlyDLPack(tensor))):
            assert seen.address == tensor.data_ptr()
            assert f"torch.{seen.dtype}" == str(dtype)
            np.testing.assert_array_equal(seen.float32(), tensor.float().numpy())


def test_bfloat16_is_rounded_to_nearest_even():
    torch = pytest.importorskip("torch")
    values = np.concatenate(
        [normal(2, 1000) * 10.0 ** np.arange(-30, 30).repeat(17)[:1000], [np.inf, -np.inf, 1.00390625]]
    )
    values = values.astype(np.float32)
    got = arrays.rounded(values, "bfloat16").float32()
    np.testing.assert_array_equal(got, torch.from_numpy(values).bfloat16().float().numpy())
    assert np.isnan(arrays.rounded(np.array([np.nan], np.float32), "bfloat16").float32()).all()


def test_results_are_of_the_querys_kind():
    torch = pytest.importorskip("torch")
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 9, KV_HEADS, DIM), normal(3, 9, KV_HEADS, DIM)
    expect(attend(q, k, v), q, k, v)
    out = attend(*(torch.from_numpy(t) for t in (q, k, v)))
    assert isinstance(out, torch.Tensor)
    expect(out.numpy(), q, k, v)
    expect(attend(q, OnlyDLPack(k), torch.from_numpy(v)), q, k, v)


@pytest.mark.parametrize("case", ["sliced", "transposed", "reversed", "one tensor for all", "misaligned", "read-only"])
def test_strides(case):
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 9, KV_HEADS, DIM), normal(3, 9, KV_HEADS, DIM)
    if case == "sliced":
        wide = normal(4, 9, KV_HEADS + 3, DIM + 5)
        wide[:, 1:-2, 2:-3] = k
        k = wide[:, 1:-2, 2:-3]
    elif case == "transposed":
        q = np.ascontiguousarray(q.transpose(2, 1, 0)).transpose(2, 1, 0)
    elif case == "reversed":
        v = np.ascontiguousarray(v[::-1, :, ::-1])[::-1, :, ::-1]
    elif case == "one tensor for all":
        qkv = normal(5, 9, HEADS + 2 * KV_HEADS, DIM)
        q, k, v = qkv[:5, :HEADS], qkv[:, HEADS:-KV_HEADS], qkv[:, -KV_HEADS:]
    elif case == "misaligned":
        memory = np.empty(k.size + 3, np.float32)
        memory[3:] = k.ravel()
        k = memory[3:].reshape(k.shape)
    else:
        for tensor in (q, k, v):
            tensor.setflags(write=False)
    expect(attend(q, k, v), q, k, v)


def test_caches_are_written_in_place(shared):
    """No copy: the pool is the caller's memory, and what lies between its rows is not touched."""
    del shared
    memory = np.full((6, 2, 7, KV_HEADS + 1, DIM), 77, np.float16)
    k_cache, v_cache = memory[:, 0, :, :KV_HEADS], memory[:, 1, :, :KV_HEADS]
    k, v = normal(1, 2, 3, KV_HEADS, DIM, dtype=np.float16), normal(2, 2, 3, KV_HEADS, DIM, dtype=np.float16)
    q = normal(3, 2, 3, HEADS, DIM, dtype=np.float16)
    table = np.array([[4, 0], [2, 5]], np.int32)
    pagedcl.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=np.array([5, 0], np.int32), block_table=table
    )
    expected = np.full_like(memory, 77)
    expected[4, 0, 5:, :KV_HEADS], expected[4, 1, 5:, :KV_HEADS] = k[0, :2], v[0, :2]
    expected[0, 0, :1, :KV_HEADS], expected[0, 1, :1, :KV_HEADS] = k[0, 2:], v[0, 2:]
    expected[2, 0, :3, :KV_HEADS], expected[2, 1, :3, :KV_HEADS] = k[1], v[1]
    np.testing.assert_array_equal(memory, expected)


def test_adopted_pool_is_the_memory_itself(shared):
    k_pool, v_pool = normal(1, 4, 5, KV_HEADS, DIM), normal(2, 4, 5, KV_HEADS, DIM)
    cache = pagedcl.Cache.adopt(shared, k_pool, v_pool)
    k, v = normal(3, 2, KV_HEADS, DIM), normal(4, 2, KV_HEADS, DIM)
    cache.write(k, v, [7, 19])
    np.testing.assert_array_equal(k_pool.reshape(-1, KV_HEADS, DIM)[[7, 19]], k)
    v_pool[2, 0] = 5  # the host's writes are seen, too
    np.testing.assert_array_equal(cache.gather([[2]], [1])[1], v_pool[2, :1])


def test_gpus_adopt_what_begins_at_a_page(shared, monkeypatch):
    monkeypatch.setitem(shared.info, "kind", "integrated gpu")
    memory = np.zeros(8192 + 2 * 40 * KV_HEADS * DIM, np.float32)
    first = -memory.ctypes.data // 4 % 1024
    pool = memory[first:][: 40 * KV_HEADS * DIM].reshape(8, 5, KV_HEADS, DIM)
    assert pagedcl.Cache.adopt(shared, pool, pool).nbytes
    with pytest.raises(ValueError, match="multiple of 4096"):
        pagedcl.Cache.adopt(shared, pool, memory[first + 1 :][: pool.size].reshape(pool.shape))


def test_a_device_without_the_hosts_memory_gets_copies(shared, monkeypatch):
    """The other way, on a device that does not need it."""
    monkeypatch.setattr(shared, "shares_host_memory", False)
    test_strides("one tensor for all")
    test_caches_are_written_in_place(shared)
    with pytest.raises(ValueError, match="does not share"):
        pagedcl.Cache.adopt(shared, normal(1, 4, 5, KV_HEADS, DIM), normal(2, 4, 5, KV_HEADS, DIM))


def test_pyopencl_arrays_stay_on_the_device():
    cl = pytest.importorskip("pyopencl")
    cl_array = pytest.importorskip("pyopencl.array")
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 9, KV_HEADS, DIM), normal(3, 9, KV_HEADS, DIM)
    out, lse, _ = attend(*(cl_array.to_device(queue, t) for t in (q, k, v)), return_attn_probs=True)
    assert isinstance(out, cl_array.Array)
    assert lse.shape == (HEADS, 5)
    expect(out.get(), q, k, v)
    pools = [cl_array.zeros(queue, (3, 4, KV_HEADS, DIM), np.float32) for _ in range(2)]
    out = pagedcl.flash_attn_with_kvcache(
        *(cl_array.to_device(queue, t) for t in (q[None, :3],)), *pools,
        *(cl_array.to_device(queue, t[None, :3]) for t in (k, v)), cache_seqlens=0, block_table=[[2]], causal=True,
    )  # fmt: skip
    np.testing.assert_array_equal(pools[0].get()[2, :3], k[:3])
    expect(out.get()[0], q[:3], k[:3], v[:3])


def test_pyopencl_buffers_are_the_memory_itself():
    cl = pytest.importorskip("pyopencl")
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    device = pagedcl.Device.adopt(context, context.devices[0], queue)
    q, k, v = normal(1, 5, HEADS, DIM), normal(2, 9, KV_HEADS, DIM), normal(3, 9, KV_HEADS, DIM)
    memory = np.concatenate([t.ravel() for t in (q, k, v)])
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=memory)
    starts = np.cumsum([0, q.size, k.size])
    seen = [
        pagedcl.DeviceArray(device, t.shape, "float32", buffer, offset=at) for t, at in zip((q, k, v), starts.tolist())
    ]
    np.testing.assert_array_equal(seen[1].numpy(), k)
    attention = pagedcl.Attention(
        device, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype="float32", causal=True
    )
    out = attention.plan_varlen([0, 5], [0, 9]).run(*seen)
    expect(out.numpy(), q, k, v)
    with pytest.raises(ValueError, match="does not hold"):
        pagedcl.DeviceArray(device, (2, *memory.shape), "float32", buffer)


def test_caches_on_a_device_say_where_a_call_runs():
    device = pagedcl.Device()  # not the default one, with which it could not share memory
    q = np.ones((1, 1, 4, 16), np.float32)
    cache = np.random.default_rng(0).standard_normal((2, 4, 2, 16)).astype(np.float32)
    k_cache, v_cache = device.array(cache), device.array(cache)
    new = np.full((1, 1, 2, 16), 3, np.float32)
    out = pagedcl.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=0, block_table=[[1]])
    np.testing.assert_array_equal(out, np.full_like(q, 3))
    np.testing.assert_array_equal(k_cache.numpy()[1, 0], new[0, 0])
    np.testing.assert_array_equal(v_cache.numpy()[0], cache[0])


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="a tensor is a list, which is no tensor"):
        arrays.view([1, 2])
    with pytest.raises(ValueError, match="none of"):
        pagedcl.Cache(
            pagedcl.default_device(), num_blocks=1, block_size=1, num_kv_heads=1, head_dim=8, dtype="complex64"
        )
    with pytest.raises(ValueError, match="slots must be integers, not float64"):
        arrays.int_array([1.5], "slots")
    with pytest.raises(ValueError, match="slots must be integers of 32 bits, not 5 to 2147483648"):
        arrays.int_array([5, 2**31], "slots")
