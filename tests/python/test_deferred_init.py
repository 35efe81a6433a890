"""zerotorch.deferred_init: a model that is never whole has the values of one that is."""

import gc

import pytest
import torch
import zerotorch
from torch import nn
from zerotorch import UsageError

WIDE = 1500


class Layers(nn.Module):
    def __init__(self, count: int = 4, width: int = 300) -> None:
        super().__init__()
        self.table = nn.Embedding(64, width, padding_idx=3)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.register_buffer("mask", torch.ones(width, width).tril())
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.orthogonal_(self.layers[0].weight)
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = x + self.attention(x, x, x)[0] @ self.mask.to(x.dtype)
        return self.head(self.norm(x)).float().square().mean()


def config(stage: int, bf16: bool) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": stage},
    }


def trained(model: nn.Module, stage: int, bf16: bool) -> list[float]:
    engine, *_ = zerotorch.initialize(model=model, config=config(stage, bf16))
    losses = []
    for i in range(3):
        loss = engine(torch.arange(8).add(i).view(1, 8))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


def test_values_and_generator() -> None:
    torch.manual_seed(4)
    plain, then = Layers(), torch.rand(3)
    torch.manual_seed(4)
    with zerotorch.deferred_init():
        deferred, deferred_then = Layers(), torch.rand(3)
    assert torch.equal(then, deferred_then)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, deferred.state_dict()[name]), name


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("bf16", [False, True])
def test_trains_the_same(stage: int, bf16: bool) -> None:
    torch.manual_seed(4)
    plain = trained(Layers(), stage, bf16)
    torch.manual_seed(4)
    with zerotorch.deferred_init():
        model = Layers()
    assert trained(model, stage, bf16) == plain


def test_draws_that_read_tensors() -> None:
    def make() -> list[torch.Tensor]:
        mean, std = torch.zeros(300, 300), torch.ones(300, 300)
        normal = torch.distributions.Normal(mean, std).sample()
        return [normal, torch.normal(mean, 2.0), torch.normal(1.0, std), torch.normal(mean, std), torch.normal(0.0, 1.0, (300, 300))]

    torch.manual_seed(4)
    plain, then = make(), torch.rand(3)
    torch.manual_seed(4)
    with zerotorch.deferred_init():
        deferred, deferred_then = make(), torch.rand(3)
    assert torch.equal(then, deferred_then)
    for one, other in zip(plain, deferred, strict=True):
        assert torch.equal(one, other)


def test_takes_no_memory() -> None:
    gc.collect()
    before = zerotorch._C.resident_nbytes()
    with zerotorch.deferred_init():
        model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(20)))
        half = nn.Linear(WIDE, WIDE).to(torch.bfloat16)
    assert zerotorch._C.resident_nbytes() - before < 5 * WIDE * WIDE * 4
    assert half.weight.dtype == torch.bfloat16
    assert torch.isfinite(half(torch.ones(1, WIDE, dtype=torch.bfloat16))).all()
    assert model(torch.ones(1, WIDE)).isfinite().all()


def test_raw_access_is_an_error_until_something_has_read_it() -> None:
    with zerotorch.deferred_init():
        weight = nn.Linear(300, 300).weight.detach()
    for look in (lambda: weight.numpy(), lambda: weight.data_ptr(), lambda: weight.tolist()):
        try:
            look()  # right, or an error: never other numbers
        except Exception as error:  # noqa: BLE001
            assert "deferred_init" in str(error).lower() or "DeferredInit" in str(error), error
    assert repr(weight).startswith("tensor(")
    assert weight.numpy().shape == (300, 300)
    assert abs(weight.numpy()).max() <= 1 / 300**0.5


def test_dtype_and_nesting() -> None:
    with zerotorch.deferred_init(dtype=torch.bfloat16):
        with zerotorch.deferred_init():
            inner = nn.Linear(300, 300)
        outer = nn.Linear(300, 300)
    assert inner.weight.dtype == outer.weight.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(UsageError, match="want torch.float32 or torch.bfloat16"):
        zerotorch.deferred_init(dtype=torch.float16)


def test_new_tensors_of_a_deferred_one_and_of_a_parameter() -> None:
    model = nn.Sequential(nn.Linear(300, 300))
    engine, *_ = zerotorch.initialize(model=model, config=config(3, False))
    with zerotorch.deferred_init():
        deferred = torch.empty(300, 300)
    for tensor in (deferred, model[0].weight):
        assert tensor.new_tensor([1.5, 2]).tolist() == [1.5, 2]
        assert tensor.new_tensor([1], dtype=torch.int32).dtype == torch.int32
        assert tensor.new(3).shape == (3,)
        assert tensor.new([4.0]).tolist() == [4.0]
    engine.destroy()


def test_without_values() -> None:
    with zerotorch.deferred_init(without_values=True):
        model = nn.Sequential(nn.Linear(300, 300))
    engine, *_ = zerotorch.initialize(model=model, config=config(3, False))
    with pytest.raises(zerotorch.ModelError, match="'0.weight' was built"):
        engine(torch.ones(1, 300))
    engine.destroy()
