"""Symbolic graph reasoning against loops over pixels and nodes, and the flaw of its published mapping."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close, relative_error

from hamburger.contexts.sgr import SGR
from hamburger.errors import OptionError

MAPPINGS = ["vote", "paper"]


def adjacency(m):
    links = (torch.rand(m, m) > 0.5).float().triu(1)
    return links + links.T


def reason(layer, x, graph):
    """The formulas one by one on one sample, c x n, with everything at full size. Returns the added part, and b."""
    m, n = len(layer.embeddings), x.shape[1]
    scores = torch.stack([layer.vote.weight[:, :, 0, 0] @ x[:, i] for i in range(n)])  # n x m
    votes = torch.stack([s.exp() / s.exp().sum() for s in scores])
    v = torch.zeros(m, layer.gather.out_features, dtype=x.dtype)
    for i in range(n):
        for j in range(m):
            v[j] += votes[i, j] * (layer.gather.weight @ x[:, i])
    v = F.relu(v)
    linked = graph + torch.eye(m, dtype=x.dtype)
    q = torch.diag(linked.sum(1) ** -0.5)
    h = F.relu((q @ linked @ q) @ torch.cat([v, layer.embeddings], 1) @ layer.reason.weight.T)
    if layer.mapping == "vote":
        b = votes
    else:
        w = layer.score.weight[0]
        s = torch.stack([torch.stack([w @ torch.cat([h[j], x[:, i]]) for j in range(m)]) for i in range(n)])
        s = s.exp() / s.exp().sum(0)  # over pixels
        b = s / s.sum(1, keepdim=True)
    return F.relu(torch.stack([b[i] @ h @ layer.scatter.weight.T for i in range(n)]).T), b


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("inner", [None, 5])
def test_layer_matches_its_formula(mapping, inner):
    graph = adjacency(4)
    layer = SGR(6, nodes=4, inner=inner, mapping=mapping, adjacency=graph).double()
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    added = torch.stack([reason(layer, sample.flatten(1), graph.double())[0].view_as(sample) for sample in x])
    assert added.norm() > 0.1
    assert_close(layer(x), x + added)


def test_published_mapping_sends_one_vector_to_all_pixels():
    layer = SGR(6, nodes=4, mapping="paper").double()
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64, requires_grad=True)
    added = layer(x) - x
    assert added.norm() > 0.1
    assert_close(added, added[:, :, :1, :1].expand_as(added))
    b = reason(layer, x.detach()[0].flatten(1), torch.zeros(4, 4).double())[1]
    assert_close(b, torch.full_like(b, 1 / 4))
    added.square().sum().backward()
    assert layer.score.weight.grad.norm() < 1e-10 * layer.scatter.weight.grad.norm()  # nothing trains the score


def test_vote_mapping_distinguishes_pixels():
    layer = SGR(6, nodes=4, mapping="vote").double()
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    added = layer(x) - x
    assert relative_error(added, added[:, :, :1, :1].expand_as(added)) > 0.01
    assert layer.score is None


def test_distant_pixels_give_no_nan():
    layer = SGR(6, nodes=4, mapping="paper")
    x = torch.randn(1, 6, 3, 5)
    x[..., 0, 0] = 1e4 * layer.score.weight.detach()[0, 6:].sign()  # all other pixels get a softmax of exactly 0
    x.requires_grad_()
    out = layer(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


def test_graphs():
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    empty = SGR(6, nodes=4, adjacency=torch.zeros(4, 4)).double()
    alone = SGR(6, nodes=4, adjacency="identity").double()
    alone.load_state_dict(empty.state_dict(), strict=False)
    assert_close(alone(x), empty(x))
    learnt = SGR(6, nodes=4).double()
    assert learnt.edges.requires_grad
    learnt.edges.data = torch.randn(4, 4, dtype=torch.float64)
    assert_close(learnt.graph(), learnt.graph().mT)
    symmetric = torch.sigmoid((learnt.edges + learnt.edges.T) / 2)
    expected = torch.stack([reason(learnt, sample.flatten(1), symmetric)[0].view_as(sample) for sample in x])
    assert_close(learnt(x), x + expected)
    learnt(x).square().sum().backward()
    assert learnt.edges.grad.norm() > 0
    assert_close(SGR(6, nodes=8).edges.sigmoid(), torch.full((8, 8), 1 / 8))


def test_embeddings_are_fixed_and_saved():
    a, b, c = SGR(6, nodes=4), SGR(6, nodes=4), SGR(6, nodes=4, seed=1)
    assert torch.equal(a.embeddings, b.embeddings)
    assert not torch.equal(a.embeddings, c.embeddings)
    assert a.embeddings.shape == (4, 300)
    assert "embeddings" in a.state_dict() and "embeddings" not in dict(a.named_parameters())
    words = torch.randn(5, 7)
    layer = SGR(6, embeddings=words)
    assert layer.vote.out_channels == 5 and layer.reason.in_features == 6 + 7
    assert torch.equal(layer.embeddings, words)
    words.zero_()
    assert layer.embeddings.norm() > 0  # a copy
    assert SGR(6, adjacency=adjacency(9)).vote.out_channels == 9


def test_parameters():
    count = lambda **options: sum(p.numel() for p in SGR(512, **options).parameters())  # noqa: E731
    base = 512 * 64 + 512 * 512 + (512 + 300) * 512 + 512 * 512
    assert count() == base + 64 * 64 == 976_896
    assert count(adjacency="identity") == base
    assert count(adjacency=adjacency(64)) == base
    assert count(mapping="paper") == base + 64 * 64 + 1024


def test_many_votes_in_half_precision():
    layer, x = SGR(8, nodes=2).eval(), torch.rand(1, 8, 96, 96) * 20  # votes of about 9216 / 2 * 10 each
    with torch.autocast("cpu", dtype=torch.float16):
        out = layer(x)
    assert relative_error(out, layer(x)) < 5e-3
    layer.scatter.weight.data *= 1e-2  # so that the output fits float16, which the votes do not
    exact = layer(x)
    assert relative_error(layer.half()(x.half()), exact) < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapping": "votes"}, "did you mean 'vote'"),
        ({"adjacency": "learned"}, "did you mean 'learnable'"),
        ({"adjacency": -torch.eye(4), "nodes": 4}, "non-negative and 4 x 4"),
        ({"adjacency": torch.eye(3), "nodes": 4}, r"4 x 4, got \(3, 3\)"),
        ({"embeddings": torch.eye(3), "nodes": 4}, "one row for each of 4 nodes"),
        ({"embeddings": torch.eye(3), "adjacency": torch.eye(4)}, "3 x 3"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1"),
    ],
)
def test_messages(options, message):
    with pytest.raises(OptionError, match=message):
        SGR(6, **options)
