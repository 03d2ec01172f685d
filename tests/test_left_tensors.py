"""Tensors that `build()` leaves in Python objects: a graph takes them out and says so, `gflow.compile` keeps them."""

from __future__ import annotations

import collections
import functools
import types

import pytest
import torch

import gflow


class Kept(torch.nn.Module):
    """Keeps its latest result in an attribute."""

    def forward(self, x):
        self.last = x * 2
        return x + 1


def _keeper(kind):
    """A function that keeps x * 2, and what gives the latest."""
    if kind == "attribute of a module":
        module = Kept()
        return module, lambda: module.last
    holder = {
        "list": [],
        "deque": collections.deque(maxlen=2),
        "item": [None],
        "dict": {},
        "set": set(),
        "attribute": types.SimpleNamespace(last=None),
    }[kind]

    def keep(x):
        if kind in ("list", "deque"):
            holder.append(x * 2)
        elif kind == "set":
            holder.clear()
            holder.add(x * 2)
        elif kind == "attribute":
            holder.last = x * 2
        else:
            holder[0] = x * 2
        return x + 1

    def latest():
        if kind == "attribute":
            return holder.last
        if kind in ("item", "dict"):
            return holder[0] if holder else None
        return [*holder][-1] if holder else None

    return keep, latest


KINDS = ["list", "deque", "item", "dict", "set", "attribute", "attribute of a module"]


@pytest.mark.parametrize("kind", KINDS)
def test_compile_keeps_those_of_each_call(kind):
    keep, latest = _keeper(kind)
    compiled = gflow.compile(keep)
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), x + 1)
        torch.testing.assert_close(latest(), x * 2)


class _Pyramid(torch.nn.Module):
    """Keeps a new list of tensors, as torchvision's RAFT does."""

    def __init__(self):
        super().__init__()
        self.levels = [torch.tensor(0.0)]

    def forward(self, x):
        self.levels = [x, x * 2]
        return x + 1


def test_graphs_take_out_a_new_list_if_nothing_read_the_old_one():
    module = _Pyramid()
    graph, x = gflow.nn.Graph.trace(module.forward), torch.randn(3)
    with pytest.warns(UserWarning, match=r"puts a tensor into .*levels.*has no values"):
        graph(x)
    assert [*map(float, module.levels)] == [0.0]
    torch.testing.assert_close(graph(x), x + 1)
    compiled = gflow.compile(module)
    torch.testing.assert_close(compiled(x), x + 1)
    torch.testing.assert_close(module.levels, [x, x * 2])


@pytest.mark.parametrize("kind", ["dict", "attribute", "attribute of a module"])
def test_graphs_assign_to_attributes_and_items_of_dicts(kind):
    keep, latest = _keeper(kind)
    graph = gflow.nn.Graph.trace(keep.forward if isinstance(keep, torch.nn.Module) else keep)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(graph(x), x + 1)
        torch.testing.assert_close(latest(), x * 2)


@pytest.mark.parametrize("kind", ["list", "deque", "item", "set"])
def test_graphs_take_them_out_and_say_so(kind):
    keep, latest = _keeper(kind)
    graph, x = gflow.nn.Graph.trace(keep), torch.randn(3)
    with pytest.warns(UserWarning, match=r"puts a tensor into .*has no values"):
        graph(x)
    assert latest() is None
    torch.testing.assert_close(graph(x), x + 1)


@pytest.mark.parametrize("most", [None, 4])
def test_cached_functions_keep_no_tensors_of_a_trace(most):
    @functools.lru_cache(most)
    def table(n):
        return torch.arange(n) * 1.0

    graph, x = gflow.nn.Graph.trace(lambda x: x + table(4)), torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"lru_cache would keep a tensor"):
        torch.testing.assert_close(graph(x), x + torch.arange(4.0))
    assert table.cache_info().currsize == 0
    assert table(4).tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(graph(x), x + torch.arange(4.0))
    assert len(graph.explain_recompiles()) == 1
    table(4).add_(1)
    again = gflow.nn.Graph.trace(lambda x: x + table(4))
    torch.testing.assert_close(again(x), x + torch.arange(1.0, 5.0))


def test_a_trace_that_fails_leaves_none_in_cached_functions():
    @functools.lru_cache
    def table(n):
        return torch.arange(n) * 1.0

    with pytest.raises(gflow.GraphTraceError):
        gflow.nn.Graph.trace(lambda x: float((x + table(4)).sum()))(torch.randn(4))
    assert table(4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("value", ["row", "rows"])
def test_masks_of_bytes_are_indices(value):
    x, mask = torch.randn(3, 4), torch.tensor([1, 0, 2], dtype=torch.uint8)
    given = torch.randn(4) if value == "row" else torch.randn(2, 4)

    def put(x, mask, given):
        x = x.clone()
        x[mask] = given
        return x

    expected = put(x, mask, given)
    torch.testing.assert_close(gflow.nn.Graph.trace(put)(x, mask, given), expected)
    torch.testing.assert_close(gflow.compile(put)(x, mask, given), expected)
    torch.testing.assert_close(gflow.nn.Graph.trace(lambda x, mask: x[mask])(x, mask), x[[0, 2]])
    torch.testing.assert_close(gflow.compile(lambda x, mask: x[mask])(x, mask), x[[0, 2]])
