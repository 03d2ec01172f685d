"""Calls of an Executable: tensors that move, results that stay the caller's, threads, memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from codegen_harness import Arg, Case, b, compile_case, full, make, reduce, spread

from gflow.dialects.program import AtenStep, Program
from gflow.runtime import Executable, results
from gflow.runtime.results import ResultPool
from gflow.runtime.tensors import Placed, addresses_of

SHAPE = (8, 6)


def program(case: Case) -> Program:
    return compile_case(case)


def affine() -> Case:
    """y = x @ w + 1, then tanh."""
    return make(
        "affine",
        [Arg(SHAPE), Arg((6, 4))],
        lambda x, w: [b("tanh", b("add", m := b("matmul", x, w), full(1.0, m)))],
    )


def run_affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + 1)


def through_aten() -> Case:
    """argmax, which runs in PyTorch, on an argument and into a result."""
    return make("argmax", [Arg(SHAPE)], lambda x: [reduce("argmax", x, 1), b("neg", x)])


# -- arguments


def test_arguments_may_move_between_calls() -> None:
    exe = Executable(program(affine()))
    keep = []  # so that no address comes twice
    for _ in range(5):
        x, w = torch.randn(SHAPE), torch.randn(6, 4)
        keep += [x, w]
        torch.testing.assert_close(exe([x, w])[0], run_affine(x, w))


def test_arguments_of_aten_steps_may_move() -> None:
    p = program(through_aten())
    assert any(isinstance(s, AtenStep) for s in p.steps)
    exe = Executable(p)
    keep = []
    for _ in range(5):
        x = torch.randn(SHAPE)
        index, negative = exe([x])
        keep += [x, index]
        assert torch.equal(index, x.argmax(1))
        assert torch.equal(negative, -x)


def test_an_argument_may_be_part_of_another_storage() -> None:
    exe = Executable(program(affine()))
    memory = torch.randn(1000)
    for offset in (0, 3, 100):
        x, w = memory[offset : offset + 48].view(SHAPE), memory[500:524].view(6, 4)
        torch.testing.assert_close(exe([x, w])[0], run_affine(x, w))


def test_one_tensor_for_two_arguments() -> None:
    case = make("square", [Arg((5, 5)), Arg((5, 5))], lambda x, y: [b("matmul", x, y)])
    x = torch.randn(5, 5)
    torch.testing.assert_close(Executable(program(case))([x, x])[0], x @ x)


@pytest.mark.parametrize("strides", [(1, 8), (12, 1), (12, 2), (0, 1)])
def test_arguments_that_are_not_dense(strides: tuple[int, int]) -> None:
    case = make(
        "strided",
        [Arg(SHAPE, strides=strides), Arg((6, 4), strides=(1, 6))],
        lambda x, w: [b("exp", x), b("matmul", x, w)],
    )
    exe = Executable(program(case))
    for _ in range(2):
        x = torch.randn(200).as_strided(SHAPE, strides)
        w = torch.randn(4, 6).t()
        e, m = exe([x, w])
        torch.testing.assert_close(e, x.exp())
        torch.testing.assert_close(m, x @ w)


def test_an_update_of_a_strided_argument_stays_inside_it() -> None:
    case = make(
        "update",
        [Arg(SHAPE, strides=(12, 2)), Arg(SHAPE)],
        lambda w, g: [b("sub", w, g)],
        alias={0: 0},
    )
    memory = torch.zeros(96)
    w, g = memory.as_strided(SHAPE, (12, 2)), torch.rand(SHAPE)
    (result,) = Executable(program(case))([w, g])
    assert result is w
    assert torch.equal(w, -g)
    assert memory[1::2].eq(0).all()


def test_the_number_of_arguments_is_checked() -> None:
    exe = Executable(program(affine()))
    with pytest.raises(ValueError, match="takes 2 arguments, 1 were given"):
        exe([torch.randn(SHAPE)])


# -- results


def hold_itself(result: torch.Tensor) -> object:
    return result


def hold_view(result: torch.Tensor) -> object:
    return result[1:, 2:]


def hold_transposed(result: torch.Tensor) -> object:
    return result.t().detach()


def hold_numpy(result: torch.Tensor) -> object:
    return result.numpy()


def hold_storage(result: torch.Tensor) -> object:
    return result.untyped_storage()


def hold_graph(result: torch.Tensor) -> object:
    """Autograd saves it for the backward pass."""
    return result * torch.ones(1, requires_grad=True)


@pytest.mark.parametrize(
    "hold", [hold_itself, hold_view, hold_transposed, hold_numpy, hold_storage, hold_graph]
)
def test_what_the_caller_holds_is_never_overwritten(hold: Callable[..., object]) -> None:
    exe = Executable(program(affine()))
    w = torch.randn(6, 4)
    held, addresses = [], set()
    for _ in range(7):
        result = exe([torch.randn(SHAPE), w])[0]
        assert result.data_ptr() not in addresses
        addresses.add(result.data_ptr())
        held.append(hold(result))
        del result
    held.clear()


def test_dropped_results_are_used_again() -> None:
    exe = Executable(program(affine()))
    x, w = torch.randn(SHAPE), torch.randn(6, 4)
    addresses = {exe([x, w])[0].data_ptr() for _ in range(10)}
    assert len(addresses) == 1


def test_a_result_that_the_caller_shrank_is_not_used_again() -> None:
    pool = ResultPool((100,), torch.float32)
    first = pool.take()
    first.untyped_storage().resize_(0)
    del first
    second = pool.take()
    assert second.untyped_storage().nbytes() >= 400


def test_pools_for_several_shapes_share_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a buffer has had more shapes than it keeps tensors for; what the caller holds is never reused."""
    monkeypatch.setattr(results, "_SHAPES", 2)
    buffers: list[results.Buffer] = []
    pools = [ResultPool((n, 2), torch.float32, 2, None, buffers) for n in (3, 5, 4, 5, 1)]
    for pool in pools * 2:
        made = pool.take()
        assert made.shape == pool.shape
        assert made.is_contiguous()
        held = made.fill_(7)[:1]
        del made
        other = pools[2].take().fill_(1)
        assert bool((held == 7).all())
        assert other.data_ptr() != held.data_ptr()
        del held, other
    assert len(buffers) == 2
    assert sorted(b.storage.nbytes() for b in buffers) == [4 * 8, 5 * 8]


def test_joined_results_are_kept_by_their_bytes() -> None:
    """Calls do not reuse a buffer whose bytes are held, and give the results in it again, or in a copy."""
    case = make(
        "several",
        [Arg(SHAPE)],
        lambda x: [b("neg", x), reduce("argmax", x, 1), b("exp", x), reduce("sum", x, 0)],
    )
    exe = Executable(program(case), kept_results=2)
    exe([torch.zeros(SHAPE)])
    assert exe.join_results([1, 2, 3]) == [1, 2, 3]
    held = []
    for n in range(4):  # more than it keeps
        x = torch.randn(SHAPE)
        own, *joined = exe([x])
        wanted = [x.argmax(1), x.exp(), x.sum(0)]
        torch.testing.assert_close([own, *joined], [-x, *wanted], check_dtype=False)
        held.append((*exe.take_whole(), wanted))
        assert len({t.untyped_storage().data_ptr() for t in joined}) == 1
        assert own.untyped_storage().data_ptr() != joined[0].untyped_storage().data_ptr(), n
    assert len({whole.data_ptr() for whole, _, _ in held}) == 4
    for whole, block, wanted in held:
        for memory in (whole, whole.clone()):
            torch.testing.assert_close(block.parts(memory), wanted, check_dtype=False)
    addresses = {whole.data_ptr() for whole, _, _ in held[:2]}
    del held, whole, memory, joined
    exe([x])
    assert exe.take_whole()[0].data_ptr() in addresses


def test_each_thread_takes_the_results_of_its_own_call() -> None:
    """Also if the first of the joined results is empty, which has no address."""
    case = make(
        "several", [Arg((0, 4)), Arg(SHAPE)], lambda y, x: [b("neg", y), b("exp", x), b("neg", x)]
    )
    exe = Executable(program(case))
    exe.join_results([0, 1, 2])
    found: list[list[torch.Tensor]] = []

    def call(x: torch.Tensor, then: Callable[[], None] = lambda: None) -> None:
        exe([torch.zeros(0, 4), x])
        then()
        whole, block = exe.take_whole()
        found.append([t.clone() for t in block.parts(whole)])

    def beside() -> None:
        thread = threading.Thread(target=call, args=(torch.ones(SHAPE),))
        thread.start()
        thread.join()

    call(torch.zeros(SHAPE), beside)
    for (empty, *rest), x in zip(found, (torch.ones(SHAPE), torch.zeros(SHAPE)), strict=True):
        assert empty.shape == (0, 4)
        torch.testing.assert_close(rest, [x.exp(), -x])


def test_results_may_be_changed_in_place() -> None:
    exe = Executable(program(affine()))
    x, w = torch.randn(SHAPE), torch.randn(6, 4)
    exe([x, w])[0].fill_(7)
    first = exe([x, w])[0]
    first.requires_grad_()
    torch.testing.assert_close(exe([x, w])[0], run_affine(x, w))
    del first
    assert not exe([x, w])[0].requires_grad


def test_results_after_a_call_in_inference_mode() -> None:
    exe, args = Executable(program(affine())), [torch.randn(SHAPE), torch.randn(6, 4)]
    with torch.inference_mode():
        assert exe(args)[0].is_inference()
    weight = torch.ones((), requires_grad=True)
    (exe(args)[0] * weight).sum().backward()  # autograd saves the result
    assert weight.grad is not None


def test_a_result_fed_back_as_an_argument() -> None:
    case = make("next", [Arg(SHAPE)], lambda x: [b("add", x, full(1.0, x))])
    exe = Executable(program(case))
    x = torch.zeros(SHAPE)
    for i in range(5):
        (x,) = exe([x])
        assert x.eq(i + 1).all()


# -- several executables, several threads


def test_two_executables_of_one_program_share_no_memory() -> None:
    p = program(affine())
    one, two = Executable(p), Executable(p)
    x, w = torch.randn(SHAPE), torch.randn(6, 4)
    a, c = one([x, w])[0], two([2 * x, w])[0]
    torch.testing.assert_close(a, run_affine(x, w))
    torch.testing.assert_close(c, run_affine(2 * x, w))
    assert one.arena.data_ptr() != two.arena.data_ptr()


def test_calls_from_several_threads() -> None:
    """Of one executable and of two; each call sees its own arguments and keeps its results."""
    shared, other = Executable(program(affine())), Executable(program(through_aten()))
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(60):
            x = torch.randn(SHAPE, generator=generator)
            w = torch.randn(6, 4, generator=generator)
            y = shared([x, w])[0]
            index, _ = other([x])
            if not torch.allclose(y, run_affine(x, w)) or not torch.equal(index, x.argmax(1)):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_number_of_threads_may_change_between_calls() -> None:
    case = make(
        "softmax",
        [Arg((300, 400))],
        lambda x: [b("div", e := b("exp", x), spread(reduce("sum", e, 1), (300, 400), 0))],
    )
    exe = Executable(program(case))
    x = torch.randn(300, 400)
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1, 7):
            torch.set_num_threads(count)
            torch.testing.assert_close(exe([x])[0], x.softmax(1))
    finally:
        torch.set_num_threads(before)


# -- memory


def allocations(work: Callable[[], object]) -> list[int]:
    """Bytes of each tensor storage that `work` allocates."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


def test_the_measure_of_allocations_sees_them() -> None:
    assert sum(allocations(lambda: torch.empty(10_000))) >= 40_000


def test_no_allocation_in_steady_state() -> None:
    case = make(
        "step",
        [Arg((64, 32)), Arg((32, 16)), Arg((64, 16))],
        lambda x, w, t: (
            [
                b("sub", w, b("matmul", b("transpose", x, permutation=(1, 0)), b("sub", y, t))),
                reduce("sum", b("abs", b("sub", y, t)), 0, 1),
            ]
            if (y := b("tanh", b("matmul", x, w)))
            else []
        ),
        alias={0: 1},
    )
    p = program(case)
    assert not any(isinstance(s, AtenStep) for s in p.steps)
    exe = Executable(p)
    args = [torch.randn(64, 32), torch.randn(32, 16), torch.randn(64, 16)]
    exe(args)
    assert allocations(lambda: exe(args)) == []


def test_an_executable_frees_its_memory() -> None:
    exe = Executable(program(affine()))
    exe([torch.randn(SHAPE), torch.randn(6, 4)])
    storage = exe.arena.untyped_storage()
    del exe
    gc.collect()
    assert torch._C._storage_Use_Count(storage._cdata) == 1


def test_addresses_that_the_caller_has_read() -> None:
    """They go with the list that they are of, and with no copy of it, which may be changed."""
    tensors = [torch.zeros(2), torch.zeros(3)]
    placed = Placed(tensors)
    placed.addresses = [1, 2]
    assert addresses_of(placed) == [1, 2]
    assert addresses_of(list(placed)) == [t.data_ptr() for t in tensors]
