"""DeepSpeed's optimizers alone: their numbers, their groups, and what the engine is told of them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from zerotorch import ops
from zerotorch.errors import NotBuiltError, UsageError
from zerotorch.ops import op_builder
from zerotorch.ops.adagrad import DeepSpeedCPUAdagrad
from zerotorch.ops.adam import DeepSpeedCPUAdam, FusedAdam
from zerotorch.ops.ademamix import AdEMAMix
from zerotorch.ops.aio import AsyncIOBuilder
from zerotorch.ops.lamb import FusedLamb
from zerotorch.ops.lion import DeepSpeedCPULion, FusedLion

STEPS = 5
ALL = [AdEMAMix, FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLion, DeepSpeedCPULion, FusedLamb]

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(7)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((3, 5), (4,))]


def train(make: Make, dtype: torch.dtype = torch.float32) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    params = parameters(dtype)
    optimizer = make(params)
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        for param in params:
            param.grad = torch.randn(param.shape).to(dtype)
        optimizer.step()
    return params, optimizer


def expect_same(one: Make, other: Make) -> None:
    for got, wanted in zip(train(one)[0], train(other)[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_torchs(decay: float) -> None:
    adamw: Make = lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=decay)  # noqa: E731
    adam: Make = lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=decay)  # noqa: E731
    expect_same(lambda params: FusedAdam(params, lr=0.01, weight_decay=decay), adamw)
    expect_same(lambda params: DeepSpeedCPUAdam(params, lr=0.01, weight_decay=decay), adamw)
    expect_same(lambda params: FusedAdam(params, lr=0.01, weight_decay=decay, adam_w_mode=False), adam)
    expect_same(lambda params: DeepSpeedCPUAdam(params, lr=0.01, weight_decay=decay, adamw_mode=False), adam)


def test_adam_without_bias_correction() -> None:
    params, grad = parameters(), torch.full((3, 5), 0.5)
    start = params[0].detach().clone()
    params[0].grad = grad
    FusedAdam(params[:1], lr=0.1, bias_correction=False).step()
    torch.testing.assert_close(params[0].detach(), start - 0.1 * 0.05 / (0.001 * 0.25) ** 0.5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adagrad_is_torchs(decay: float) -> None:
    expect_same(
        lambda params: DeepSpeedCPUAdagrad(params, lr=0.1, weight_decay=decay),
        lambda params: torch.optim.Adagrad(params, lr=0.1, weight_decay=decay),
    )


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adagrad_takes_sparse_gradients() -> None:
    def embed(make: Make) -> torch.Tensor:
        torch.manual_seed(3)
        table = torch.nn.Embedding(6, 4, sparse=True)
        optimizer = make(list(table.parameters()))
        for rows in ([1, 1, 4], [4, 0, 2]):
            optimizer.zero_grad()
            table(torch.tensor(rows)).square().sum().backward()
            optimizer.step()
        return table.weight

    torch.testing.assert_close(
        embed(lambda params: DeepSpeedCPUAdagrad(params, lr=0.1)),
        embed(lambda params: torch.optim.Adagrad(params, lr=0.1)),
    )


@pytest.mark.parametrize("kind", [FusedLion, DeepSpeedCPULion])
def test_lion_is_its_papers(kind: Any) -> None:
    lr, betas, decay = 0.01, (0.9, 0.99), 0.1
    got, _ = train(lambda params: kind(params, lr=lr, betas=betas, weight_decay=decay))
    wanted = [param.detach().clone() for param in parameters()]
    momenta = [torch.zeros_like(weight) for weight in wanted]
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        for weight, momentum in zip(wanted, momenta, strict=True):
            grad = torch.randn(weight.shape)
            weight -= lr * (torch.sign(betas[0] * momentum + (1 - betas[0]) * grad) + decay * weight)
            momentum.copy_(betas[1] * momentum + (1 - betas[1]) * grad)
    torch.testing.assert_close([param.detach() for param in got], wanted, rtol=1e-6, atol=1e-7)


#: By steps of both schedules: weights after 30 updates of the authors' pytorch/ademamix.py (github.com/apple/ml-ademamix,
#: c3d73c0), in fp64 as here, where only the order of operations differs.
OF_ADEMAMIX = {
    (None, None): [-1.0913379759245625, -0.7846056342855238, -0.47358653935681644, -0.14404273950748192],
    (20, 10): [-1.102220853757149, -0.7929133466029455, -0.4768223825444416, -0.1419930952096213],
    (60, 60): [-1.110372065042779, -0.7992135434586547, -0.4807351488645919, -0.14402619809107223],
}


@pytest.mark.parametrize("steps", OF_ADEMAMIX)
def test_ademamix_has_its_authors_numbers(steps: tuple[int | None, int | None]) -> None:
    index = torch.arange(4, dtype=torch.float64)
    weight = torch.nn.Parameter(index * 0.3 - 1)
    optimizer = AdEMAMix(
        [weight],
        lr=0.01,
        betas=(0.9, 0.99, 0.999),
        alpha=4.0,
        t_alpha=steps[0],
        t_beta3=steps[1],
        eps=1e-6,
        weight_decay=0.05,
    )
    for step in range(1, 31):
        weight.grad = torch.sin(0.7 * index + 1.3 * step) + 0.2
        optimizer.step()
    assert weight.tolist() == pytest.approx(OF_ADEMAMIX[steps], abs=1e-12)


def test_lion_stays_where_its_direction_is_0() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.tensor([0.0, 1.0])
    FusedLion([param], lr=0.5).step()
    assert param.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("correct", [False, True])
def test_lamb_is_deepspeeds(inside: bool, correct: bool) -> None:
    lr, (beta1, beta2), eps, decay = 0.1, (0.9, 0.999), 1e-3, 0.1
    got, optimizer = train(
        lambda params: FusedLamb(
            params, lr=lr, eps=eps, weight_decay=decay, eps_inside_sqrt=inside, bias_correction=correct, max_coeff=0.9
        )
    )
    wanted = [param.detach().double() for param in parameters()]
    states = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in wanted]
    coefficients: list[float] = []
    for step in range(1, STEPS + 1):
        torch.manual_seed(99 + step)
        coefficients.clear()
        for weight, (mean, square) in zip(wanted, states, strict=True):
            grad = torch.randn(weight.shape).double()
            mean.copy_(beta1 * mean + (1 - beta1) * grad)
            square.copy_(beta2 * square + (1 - beta2) * grad**2)
            update = mean / ((square + eps).sqrt() if inside else square.sqrt() + eps) + decay * weight
            coefficients.append(min(0.9, max(0.01, (weight.norm() / update.norm()).item())))
            rate = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step) if correct else lr
            weight -= rate * coefficients[-1] * update
    torch.testing.assert_close([param.detach().double() for param in got], wanted, rtol=1e-5, atol=1e-6)
    assert isinstance(optimizer, FusedLamb)
    assert optimizer.get_lamb_coeffs() == pytest.approx(coefficients, rel=1e-5)


def test_lamb_of_a_weight_of_zeros_has_ratio_1() -> None:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    optimizer = FusedLamb([param])
    optimizer.step()
    assert optimizer.get_lamb_coeffs() == [1.0] and param.abs().min() > 0


@pytest.mark.parametrize("kind", ALL)
def test_bf16_parameters_follow_fp32_ones(kind: Any) -> None:
    for got, wanted in zip(train(kind, torch.bfloat16)[0], train(kind)[0], strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    "kind, moved",
    [
        (FusedAdam, torch.bfloat16),
        (DeepSpeedCPUAdam, torch.float32),
        (DeepSpeedCPUAdagrad, torch.float32),
        (DeepSpeedCPULion, torch.float32),
    ],
)
def test_dtypes_of_states(kind: Any, moved: torch.dtype) -> None:
    params, optimizer = train(kind, torch.bfloat16)
    assert {state.dtype for name, state in optimizer.state[params[0]].items() if name != "step"} == {moved}
    if kind is not FusedAdam:
        params, optimizer = train(lambda params: kind(params, fp32_optimizer_states=False), torch.bfloat16)
        assert {state.dtype for name, state in optimizer.state[params[0]].items() if name != "step"} == {torch.bfloat16}
        assert optimizer.zerotorch_params(optimizer.param_groups[0])["fp32_optimizer_states"] is False


@pytest.mark.parametrize("kind", ALL)
def test_state_goes_through_a_checkpoint(kind: Any) -> None:
    params, first = train(kind)
    second = kind([torch.nn.Parameter(param.detach().clone()) for param in params])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for group, other in zip(first.param_groups[0]["params"], second.param_groups[0]["params"], strict=True):
        group.grad, other.grad = torch.ones_like(group), torch.ones_like(other)
    first.step()
    second.step()
    for one, other in zip(params, second.param_groups[0]["params"], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ALL)
def test_parameters_without_gradient_stay(kind: Any) -> None:
    params = parameters()
    before = params[0].detach().clone()
    params[1].grad = torch.ones(4)
    optimizer = kind(params)
    assert optimizer.step(lambda: 3.0) == 3.0
    assert torch.equal(params[0], before) and params[0] not in optimizer.state


DEFAULTS: dict[Any, tuple[str, dict[str, Any]]] = {
    FusedAdam: (
        "Adam",
        {
            "lr": 1e-3,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.0,
            "bias_correction": True,
            "adam_w_mode": True,
        },
    ),
    DeepSpeedCPUAdam: (
        "Adam",
        {
            "lr": 1e-3,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0,
            "bias_correction": True,
            "adam_w_mode": True,
        },
    ),
    DeepSpeedCPUAdagrad: ("Adagrad", {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0}),
    FusedLion: ("Lion", {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0}),
    AdEMAMix: (
        "AdEMAMix",
        {
            "lr": 1e-3,
            "betas": [0.9, 0.999, 0.9999],
            "alpha": 5.0,
            "t_alpha": 0,
            "t_beta3": 0,
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
    ),
    DeepSpeedCPULion: ("Lion", {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0}),
    FusedLamb: (
        "Lamb",
        {
            "lr": 1e-3,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.0,
            "bias_correction": True,
            "max_coeff": 10.0,
            "min_coeff": 0.01,
            "eps_inside_sqrt": False,
        },
    ),
}


@pytest.mark.parametrize("kind", ALL)
def test_what_the_engine_is_told(kind: Any) -> None:
    one, two = parameters()
    optimizer = kind([{"params": [one]}, {"params": [two], "lr": 0.5, "weight_decay": 0.25}])
    name, params = DEFAULTS[kind]
    assert optimizer.zerotorch_type == name
    assert optimizer.zerotorch_params(optimizer.param_groups[0]) == params
    assert optimizer.zerotorch_params(optimizer.param_groups[1]) == {**params, "lr": 0.5, "weight_decay": 0.25}


def test_what_the_engine_is_told_of_l2() -> None:
    for optimizer in (FusedAdam(parameters(), adam_w_mode=False), DeepSpeedCPUAdam(parameters(), adamw_mode=False)):
        assert optimizer.zerotorch_params(optimizer.param_groups[0])["adam_w_mode"] is False


@pytest.mark.parametrize("kind", [FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLamb])
def test_amsgrad_is_refused(kind: Any) -> None:
    with pytest.raises(RuntimeError, match="amsgrad"):
        kind(parameters(), amsgrad=True)


def test_other_refusals() -> None:
    with pytest.raises(UsageError, match="gradient_clipping"):
        FusedLamb(parameters(), max_grad_norm=1.0)
    param = torch.nn.Parameter(torch.zeros(2, 2))
    param.grad = torch.eye(2).to_sparse()
    for kind in (FusedAdam, FusedLion, FusedLamb):
        with pytest.raises(UsageError, match=f"{kind.__name__} takes no sparse gradients"):
            kind([param]).step()


@pytest.mark.parametrize("kind", [FusedAdam, FusedLion])
def test_zero_grad(kind: Any) -> None:
    params = parameters()
    for none in (True, False):
        for param in params:
            param.grad = torch.ones_like(param)
        kind(params, set_grad_none=none).zero_grad()
        assert all(param.grad is None if none else not param.grad.any() for param in params)


def test_builders_say_what_is_built_in() -> None:
    assert ops.__compatible_ops__["fused_adam"] and ops.__compatible_ops__["cpu_lion"]
    assert not ops.__compatible_ops__["deepspeed_not_implemented"]
    assert ops.__compatible_ops__[AsyncIOBuilder.NAME] == AsyncIOBuilder().is_compatible()
    assert set(ops.__compatible_ops__) == {*op_builder.ALL_OPS, "deepspeed_not_implemented"}
    with pytest.raises(NotBuiltError, match="fused_adam is part of the engine"):
        op_builder.FusedAdamBuilder().load()
    with pytest.raises(NotBuiltError, match="quantizer is not built"):
        op_builder.QuantizerBuilder().load()
