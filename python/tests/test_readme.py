# SPDX-License-Identifier: Apache-2.0
"""The examples of the README run, one behind the other, and mean what they say."""

import pathlib
import re

import numpy as np
import reference

import pagedcl

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_examples():
    flash, objects = re.findall(r"```python\n(import numpy.*?|device = .*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(flash, names)
    keys, values = (
        names[cache][[2, 0]].reshape(1, -1, 2, 64)[0, :20].astype(float) for cache in ("k_cache", "v_cache")
    )
    expected, _ = reference.attention(names["q"][0].astype(float), keys, values, causal=True)
    np.testing.assert_allclose(names["out"][0], expected, atol=2e-3)
    names["pagedcl"] = pagedcl
    exec(objects, names)
    assert names["blocks"].stats["used"] == 2
    assert names["cache"].gather(names["blocks"].table([names["sequence"]]), [20])[1].shape == (20, 2, 64)
    assert names["out"].shape == (1, 8, 64)
