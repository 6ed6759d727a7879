"""What a failed attempt has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from holdfast.sdk.state import Protected


def by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)


def with_gradients(model: nn.Module) -> nn.Module:
    model(torch.randn(4, 2)).sum().backward()
    return model


UPDATES = {
    "by hand": by_hand,
    "one by one": lambda model: torch.optim.SGD(model.parameters(), foreach=False).step(),
    "all at once": lambda model: torch.optim.Adam(model.parameters(), foreach=True).step(),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_an_update_is_noticed_whichever_optimizer_makes_it(update: Callable[[nn.Module], None]) -> None:
    model, protected = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Protected()
    protected.add("model", model)
    protected.remember()
    with_gradients(model)
    assert protected.changed() == set(), "buffers have, and are put back"
    update(model)
    assert protected.changed() == {f"model.{name}" for name, _ in model.named_parameters()}
    protected.remember()
    assert protected.changed() == set()


def test_what_is_made_for_inference_or_updated_by_an_optimizer_of_torchs_is_not_watched() -> None:
    model, protected = nn.Linear(2, 2), Protected()
    with torch.inference_mode():
        teacher = nn.Linear(2, 2)
    protected.add("model", model)
    protected.add("teacher", teacher)
    protected.remember()
    by_hand(with_gradients(model))
    assert protected.changed() == {"model.weight", "model.bias"}
    protected.add("optimizer", torch.optim.SGD(model.parameters()))
    protected.remember()
    by_hand(with_gradients(model))
    assert protected.changed() == set(), "its hook would have told"
