"""Nested state as bytes and tensors."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SpecError
from holdfast.sdk import tree

PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
KEYS = st.integers(-(2**63), 2**63 - 1) | st.text() | st.booleans() | st.none()
STATES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


def there_and_back(state: Any) -> Any:
    skeleton, tensors = tree.pack(state, name="state")
    copies = [tree.empty(shape, torch.device("cpu")) for shape in tree.shapes(tensors)]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor)
    return tree.unpack(skeleton, copies)


@given(STATES)
def test_any_nesting_comes_back_as_it_was(state: Any) -> None:
    assert there_and_back(state) == state
    assert tree.from_bytes(tree.to_bytes(state, name="state")) == state


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    for back in (there_and_back({"a": [tensor]}), tree.from_bytes(tree.to_bytes({"a": [tensor]}, name="state"))):
        assert back["a"][0].dtype == dtype
        assert back["a"][0].shape == tensor.shape
        assert torch.equal(back["a"][0], tensor)


def test_what_is_no_number_stays_so() -> None:
    back = there_and_back([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1.0, back[3]) == -1.0


def test_an_optimizer_with_a_state_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.8, 0.9))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(there_and_back(optimizer.state_dict()))
    assert other.param_groups[0]["betas"] == (0.8, 0.9)
    assert torch.equal(other.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_numbers_of_numpy_and_kinds_of_dict_become_plain() -> None:
    state = {"lr": np.float64(0.1), "best": OrderedDict(a=1)}
    assert there_and_back(state) == {"lr": 0.1, "best": {"a": 1}}


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [1, {2, 3}]}, "protect(x['a'][1])"),
        ({"f": print}, "protect(x['f'])"),
        ({("a", 1): 1}, "protect(x[('a', 1)])"),
        ({"big": 2**70}, "protect(x['big'])"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(state: Any, where: str) -> None:
    with pytest.raises(SpecError) as refusal:
        tree.pack(state, name="x")
    assert where in str(refusal.value)
