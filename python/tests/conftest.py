# SPDX-License-Identifier: Apache-2.0
import pytest

import pagedcl


@pytest.fixture(scope="session")
def device():
    return pagedcl.default_device()


@pytest.fixture(scope="session")
def shared(device):
    """A device that shares the host's memory, without which there is nothing to adopt."""
    if not device.shares_host_memory:
        pytest.skip(f"{device} does not share the host's memory")
    return device
