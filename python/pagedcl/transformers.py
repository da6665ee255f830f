# SPDX-License-Identifier: Apache-2.0
"""PagedCL as an attention implementation of Hugging Face transformers, in continuous batching and outside of it.

transformers has no public place for the functions behind its flash attention, so `register` puts itself before two
private ones: the one that imports them, and the one that decides whether decode goes through block tables. Written for
transformers 5.24.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

# The name must have "flash" in it: by that transformers knows that no attention mask is wanted.
NAME = "flash_pagedcl"


def _flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
) -> Any:
    """Sequences of one length, [batch, seqlen, heads, head_dim]: varlen with equal lengths."""
    batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    out = flash_attn_varlen_func(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        np.arange(batch + 1) * seqlen_q,
        np.arange(batch + 1) * seqlen_k,
        seqlen_q,
        seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
    )
    return out.unflatten(0, (batch, seqlen_q))


def register() -> str:
    """Makes `attn_implementation="flash_pagedcl"` work, and returns that name. Once is enough; again does no harm.

    Raises ImportError where transformers is missing or lacks what this needs.
    """
    try:
        from transformers import modeling_flash_attention_utils as flash
        from transformers.generation.continuous_batching import initialization
        from transformers.integrations.flash_attention import flash_attention_forward
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        lazy_imports, ensure_tables = flash._lazy_imports, initialization.ensure_decode_fast_path_is_available
        allocators, types_of = initialization.ATTN_TYPE_TO_ALLOCATOR, initialization.group_layers_by_attn_type
    except (ImportError, AttributeError) as error:
        raise ImportError(f"pagedcl.transformers needs transformers 5.24 or one like it: {error}") from error
    if NAME in ALL_ATTENTION_FUNCTIONS.valid_keys():
        return NAME

    def import_functions(implementation, *arguments, **options):
        if implementation != NAME:
            return lazy_imports(implementation, *arguments, **options)
        return _flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, flash._pad_input, flash._unpad_input

    def allow_tables(config, cb_config, user_requested):
        """As transformers does for FlashAttention on CUDA: tables where every layer's allocator has them."""
        if config._attn_implementation != NAME:
            ensure_tables(config, cb_config, user_requested)
        elif not all(allocators[kind].supports_block_table for kind in types_of(config)):
            cb_config.max_blocks_per_request = 0

    flash._lazy_imports = import_functions
    initialization.ensure_decode_fast_path_is_available = allow_tables
    ALL_ATTENTION_FUNCTIONS.register(NAME, flash_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, flash_attention_mask)
    return NAME
