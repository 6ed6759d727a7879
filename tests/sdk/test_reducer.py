"""Gradients: weighted, summed over ranks in a fixed order, there when `backward()` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from holdfast.sdk import reducer
from holdfast.sdk.reducer import DataParallel
from holdfast.sdk.session import Run
from holdfast.sdk.step import Step
from holdfast.spec.worker import WorkerSpec


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
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_a_rank_without_a_share_adds_nothing(model: nn.Module, loss: str, monkeypatch: pytest.MonkeyPatch):
    weights: list[float] = []
    all_reduce = dist.all_reduce

    def with_another(tensor: torch.Tensor, **options: object) -> object:
        """A second rank with a weight of 1, and gradients of zero."""
        if tensor.dtype is torch.float64:
            weights.append(tensor.item())
            tensor += 1
        return all_reduce(tensor, **options)

    monkeypatch.setattr(dist, "all_reduce", with_another)
    net = DataParallel(model, loss=loss)
    for is_weighed in (False, True):
        net.set_share(0.0)
        net.begin_piece(0.0)
        if is_weighed:
            net.set_weight(8.0)
        model.zero_grad()
        (net(torch.rand(6, 4)).sum() * float("nan")).backward()
        assert not any(found.any() for found in gradients(model))
    assert weights == [0.0]


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


# --- micro-batches --------------------------------------------------------------------------------------------


LENGTHS = torch.arange(1, 12)
"""Tokens of each of eleven samples: no two alike."""


class Eleven(IterableDataset):
    """The samples from the beginning, again and again."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(list(zip(inputs(), LENGTHS, strict=True)))

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


def inputs() -> torch.Tensor:
    return torch.rand(11, 4, generator=torch.Generator().manual_seed(1))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(piece: Callable[[Step, nn.Module, list[torch.Tensor]], torch.Tensor], *, size: int, **options: object):
    """The gradients that one step leaves, over all ranks of a world; every rank's are summed by hand."""
    loss, stream = options.pop("loss", "mean"), options.pop("stream", False)
    total = [torch.zeros_like(parameter) for parameter in plain().parameters()]
    for rank in range(size):
        model = plain()
        run = Run(WorkerSpec(None, None, rank, rank, size, size))
        data = Eleven() if stream else TensorDataset(inputs(), LENGTHS)
        run.data(data, global_batch=11, micro_batch=5, **options)
        net = run.data_parallel(model, loss=loss)

        @run.step
        def step(step: Step, net: DataParallel = net) -> None:
            for batch in step.micro_batches():
                piece(step, net, batch).backward()

        step(next(run.steps(total=1)))
        total = [sum_ + mine for sum_, mine in zip(total, gradients(model), strict=True)]
    return total


def mean_over_samples() -> list[torch.Tensor]:
    model = plain()
    model(inputs()).mean().backward()
    return gradients(model)


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stream", [False, True], ids=["a dataset", "a stream"])
def test_the_mean_over_micro_batches_is_that_over_their_samples(stream: bool):
    def piece(_: Step, net: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        sizes.append(len(batch[0]))
        return net(batch[0]).mean()

    sizes: list[int] = []
    assert_close(train(piece, size=1, stream=stream), mean_over_samples())
    assert sizes == [5, 5, 1]


def test_without_a_group_it_is_the_same():
    assert_close(train(lambda _, net, batch: net(batch[0]).mean(), size=1), mean_over_samples())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("size", [4, 3, 2])
def test_micro_batches_give_the_same_gradient_on_any_number_of_ranks(size: int):
    assert_close(train(lambda _, net, batch: net(batch[0]).mean(), size=size), mean_over_samples())
    summed = train(lambda _, net, batch: net(batch[0]).sum() / 22, size=size, loss="sum")
    assert_close(summed, mean_over_samples())


@pytest.mark.parametrize("grouped", [True, False], ids=["in a group", "alone"])
@pytest.mark.parametrize("each", [True, False], ids=["each piece", "all at once"])
def test_micro_batches_count_by_their_tokens(each: bool, grouped: bool, request: pytest.FixtureRequest):
    def piece(step: Step, net: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        tokens = batch[1].sum().item()
        if each:
            step.weigh(tokens)
        elif step.number not in weighed:
            weighed.add(step.number)
            step.weigh(LENGTHS.sum().item())
        return (net(batch[0]).sum(1) * batch[1]).sum() / (tokens if each else LENGTHS.sum())

    if grouped:
        request.getfixturevalue("alone")
    weighed: set[int] = set()
    model = plain()
    ((model(inputs()).sum(1) * LENGTHS).sum() / LENGTHS.sum()).backward()
    assert_close(train(piece, size=1), gradients(model))
