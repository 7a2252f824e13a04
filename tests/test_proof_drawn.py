"""Networks, arrays and mappings drawn at random: their programs are proven, and no two of their accesses race."""

from __future__ import annotations

import pytest
from drawn import compiled_at_random
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnncc.driver.pipeline import Compilation
from cnncc.driver.prove import claim_of
from cnncc.proof.proof import prove

pytestmark = pytest.mark.usefixtures("short_searches")


def proven(compilation: Compilation) -> None:
    """A second draw would find nothing that the first one does not, in practice."""
    assert prove(claim_of(compilation), 1.0).failures == []


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_compiles_is_proven(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    compiled_at_random(data, tmp_path_factory.getbasetemp(), proven)
