"""Gradients: weighted, summed over ranks in a fixed order, there when `backward()` returns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from holdfast.sdk import reducer
from holdfast.sdk.reducer import DataParallel


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of one rank: sums over it are what this rank gave."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def wrap(model: nn.Module) -> DataParallel:
    return DataParallel(model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def reference(model: nn.Module, inputs: torch.Tensor, *, times: int = 1) -> list[torch.Tensor]:
    for _ in range(times):
        model(inputs).sum().backward()
    found = gradients(model)
    model.zero_grad()
    return found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bucket_bytes", [1, 100, 8 << 20])
def test_gradients_count_for_the_ranks_share(model: nn.Module, bucket_bytes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reducer, "BUCKET_BYTES", bucket_bytes)
    inputs = torch.rand(6, 4)
    expected = reference(model, inputs)
    net = wrap(model)
    net.set_share(0.25)
    for set_to_none in (True, False, True):
        model.zero_grad(set_to_none=set_to_none)
        net(inputs).sum().backward()
        assert all(torch.equal(mine, 0.25 * theirs) for mine, theirs in zip(gradients(model), expected, strict=True))


@pytest.mark.usefixtures("alone")
def test_what_losses_are_means_over_is_what_they_count_for(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    inputs = torch.rand(6, 4)
    mine = reference(model, inputs)
    net = wrap(model)
    all_reduce = dist.all_reduce

    def with_another(tensor: torch.Tensor, **options: object) -> object:
        """A second rank with three times our weight, and gradients of zero."""
        if tensor.dtype is torch.float64:
            tensor *= 4
        return all_reduce(tensor, **options)

    monkeypatch.setattr(dist, "all_reduce", with_another)
    net.set_share(0.5)
    net.set_weight(8.0)
    net(inputs).sum().backward()
    assert all(torch.equal(found, 0.25 * each) for found, each in zip(gradients(model), mine, strict=True))
    net.set_share(0.5)
    model.zero_grad()
    net(inputs).sum().backward()
    assert all(torch.equal(found, 0.5 * each) for found, each in zip(gradients(model), mine, strict=True))


@pytest.mark.usefixtures("alone")
def test_accumulated_gradients_are_weighted_once(model: nn.Module):
    inputs = torch.rand(6, 4)
    expected = reference(model, inputs, times=3)
    net = wrap(model)
    net.set_share(0.5)
    with net.no_sync():
        net(inputs).sum().backward()
        net(inputs).sum().backward()
    net(inputs).sum().backward()
    assert all(torch.allclose(mine, 0.5 * theirs) for mine, theirs in zip(gradients(model), expected, strict=True))


@pytest.mark.usefixtures("alone")
def test_a_parameter_that_no_rank_uses_has_no_gradient(model: nn.Module):
    unused = nn.Linear(3, 3)
    net = wrap(nn.Sequential(model, unused))
    for _ in range(2):
        net.module[0](torch.rand(6, 4)).sum().backward()
        assert [parameter.grad for parameter in unused.parameters()] == [None, None]
        assert any(grad.any() for grad in gradients(model))
        net.zero_grad()
    unused.weight.grad = torch.ones(3, 3)
    net.module[0](torch.rand(6, 4)).sum().backward()
    assert torch.equal(unused.weight.grad, torch.ones(3, 3)), "accumulated before, and averaged now"


@pytest.mark.usefixtures("alone")
def test_a_failed_attempt_leaves_nothing_behind(model: nn.Module):
    inputs = torch.rand(6, 4)
    expected = reference(model, inputs)
    net = wrap(model)
    handle = model[0].weight.register_hook(lambda _: (_ for _ in ()).throw(RuntimeError("on purpose")))
    with pytest.raises(RuntimeError, match="on purpose"):
        net(inputs).sum().backward()
    handle.remove()
    net.reset()
    model.zero_grad()
    net(inputs).sum().backward()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients(model), expected, strict=True))


@pytest.mark.usefixtures("alone")
def test_memory_of_a_reduction_that_was_given_up_is_not_used_again(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    given: list[torch.Tensor] = []

    class Forgotten:
        def wait(self) -> None:
            raise RuntimeError("given up")

        def is_completed(self) -> bool:
            return False

    def all_reduce(tensor: torch.Tensor, **_: object) -> Forgotten:
        given.append(tensor)
        return Forgotten()

    inputs = torch.rand(6, 4)
    expected = reference(model, inputs)
    net = wrap(model)
    with monkeypatch.context() as patch:
        patch.setattr(dist, "all_reduce", all_reduce)
        with pytest.raises(RuntimeError, match="given up"):
            net(inputs).sum().backward()
    net.reset()
    model.zero_grad()
    net(inputs).sum().backward()
    for late in given:
        late.fill_(7.0)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients(model), expected, strict=True))


@pytest.mark.usefixtures("alone")
def test_buffers_that_a_module_replaces_still_travel(model: nn.Module, monkeypatch: pytest.MonkeyPatch):
    sent: list[torch.Tensor] = []
    broadcast = dist.broadcast
    monkeypatch.setattr(dist, "broadcast", lambda tensor, **kw: sent.append(tensor.clone()) or broadcast(tensor, **kw))
    net = wrap(model)
    model[1].running_mean = torch.full((8,), 7.0)
    net(torch.rand(6, 4)).sum().backward()
    mean = model[1].running_mean
    assert mean.numpy().tobytes() in sent[0].numpy().tobytes()


@pytest.mark.usefixtures("alone")
def test_what_an_aborted_collective_left_is_not_taken_for_a_result(model: nn.Module):
    class Over(Exception):
        pass

    def check() -> None:
        raise Over

    net = DataParallel(model, check=check)
    with pytest.raises(Over):
        net(torch.rand(6, 4)).sum().backward()


def test_without_a_group_gradients_are_the_modules_own(model: nn.Module):
    inputs = torch.rand(6, 4)
    expected = reference(model, inputs)
    net = wrap(model)
    net(inputs).sum().backward()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients(model), expected, strict=True))
