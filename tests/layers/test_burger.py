"""The Hamburger in its versions, against plain torch, and the shapes it takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference_layers import count
from tolerances import assert_close

import hamburger as hb
from hamburger.registry import options_of

NAMES = ["nmf", "vq", "cd"]


def randomise(layer):
    """Every parameter and statistic away from its neutral start, so that forgetting one shows."""
    for tensor in [*layer.parameters(), *(b for n, b in layer.named_buffers() if "running" in n)]:
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.3
    return layer.eval()


def ham_of(layer, x, which="ham"):
    """The layer's decomposition by the library's function alone."""
    ham = getattr(layer, which)
    return hb.decompose(x, ham.ham, steps=ham.eval_steps, bases=ham.dictionary.bases).reconstruction


def batch_norm(norm, y):
    return F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def test_parameter_counts_match_the_paper():
    assert count(hb.Hamburger(512)) == count(hb.Hamburger(512, version="paper")) == 525_824
    assert round(525_824 / 2**20, 2) == 0.50  # Table 2 and 3 count in units of 2^20
    assert count(hb.Hamburger(512, ham="vq")) == count(hb.Hamburger(512, ham="cd")) == 525_824
    # lower bread with bias, cheese and its BN, bare upper bread
    assert count(hb.Hamburger(512, version="v2")) == (512 * 512 + 512) + (512 * 512 + 2 * 512) + 512 * 512
    assert count(hb.Hamburger(512, version="v2+")) == count(hb.Hamburger(512, version="v2")) + 2
    norm = 2 * 512
    assert count(hb.Hamburger(512, parts={"ham"})) == norm
    assert count(hb.Hamburger(512, parts={"lower", "ham"})) == 512 * 512 + 512 + norm
    assert count(hb.Hamburger(512, parts={"ham", "upper"})) == 512 * 512 + norm
    assert count(hb.Hamburger(512, parts={"lower", "upper"})) == 525_824


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["paper", "v1", "v2", "v2+"])
def test_versions_match_their_formulas(version, name):
    layer = randomise(hb.Hamburger(12, ham=name, inner=8, rank=3, version=version)).double()
    z = torch.randn(2, 12, 5, 7, dtype=torch.float64)
    flat = z.reshape(2, 12, 35)
    x = torch.einsum("dc,bcn->bdn", layer.lower.weight, flat) + layer.lower.bias[:, None]
    x = ham_of(layer, F.relu(x) if name == "nmf" else x)
    if version in ("v2", "v2+"):
        x = F.relu(batch_norm(layer.cheese[1], torch.einsum("ed,bdn->ben", layer.cheese[0].weight, x)))
    y = torch.einsum("cd,bdn->bcn", layer.upper.weight, x)
    if version in ("paper", "v1"):
        y = batch_norm(layer.norm, y)
    total = {
        "paper": lambda: flat + y,
        "v1": lambda: F.relu(flat + y),
        "v2": lambda: F.relu(flat + y),
        "v2+": lambda: F.relu(layer.skip_scale * flat + layer.burger_scale * y),
    }[version]()
    assert_close(layer(z), total.reshape(z.shape), slack=100)


@pytest.mark.parametrize("parts", ["ham", "lower ham", "ham upper", "lower upper", "upper"])
def test_parts_match_table_2(parts):
    parts = set(parts.split())
    layer = randomise(hb.Hamburger(12, rank=3, parts=parts, version="paper")).double()
    z = torch.randn(2, 12, 35, dtype=torch.float64)
    x = z
    if "lower" in parts:
        x = layer.lower.weight @ x + layer.lower.bias[:, None]
    x = F.relu(x)
    if "ham" in parts:
        x = ham_of(layer, x)
    if "upper" in parts:
        x = layer.upper.weight @ x
    assert_close(layer(z), z + batch_norm(layer.norm, x), slack=100)


def test_v2_plus_starts_as_the_relu_of_its_input():
    layer = hb.Hamburger(8, rank=2, version="v2+")
    z = torch.randn(2, 8, 5, 5)
    assert torch.equal(layer(z), z.relu())


@pytest.mark.parametrize("name", NAMES)
def test_heads_decompose_channel_groups_separately(name):
    layer = hb.Hamburger(12, ham=name, rank=3, heads=3, parts={"ham"}, version="paper").eval().double()
    z = torch.randn(2, 12, 20, dtype=torch.float64)
    x = z.relu() if name == "nmf" else z
    sections = [
        hb.decompose(x[:, 4 * s : 4 * s + 4], layer.ham.ham, bases=layer.ham.dictionary.bases[s : s + 1]).reconstruction
        for s in range(3)
    ]
    assert_close(layer(z), z + batch_norm(layer.norm, torch.cat(sections, 1)), slack=100)


@pytest.mark.parametrize("name", NAMES)
def test_dual_decomposes_half_of_the_width_transposed(name):
    layer = randomise(hb.Hamburger(8, ham=name, inner=6, rank=3, version="v2+", dual=True, heads=2)).double()
    z = torch.randn(2, 8, 4, 5, dtype=torch.float64)
    x = layer.lower.weight @ z.flatten(2) + layer.lower.bias[:, None]
    x = x.relu() if name == "nmf" else x
    folded = x[:, 6:].reshape(4, 3, 20)
    transposed = folded.mT  # 20 positions as rows, 3 channels as columns
    bases = layer.channel_ham.dictionary(transposed)
    assert bases.shape == (1, 20, 3)
    channel = hb.decompose(transposed, layer.channel_ham.ham, bases=bases).reconstruction.mT.reshape(2, 6, 20)
    spatial = layer.ham(x[:, :6])
    mixed = torch.cat([spatial, channel], 1)
    y = F.relu(batch_norm(layer.cheese[1], layer.cheese[0].weight @ mixed))
    total = layer.skip_scale * z.flatten(2) + layer.burger_scale * (layer.upper.weight @ y)
    assert_close(layer(z), total.relu().view_as(z), slack=100)
    assert layer.cheese[0].weight.shape == (6 // 2, 12)


@given(
    name=st.sampled_from(NAMES),
    b=st.integers(1, 3),
    spatial=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    heads=st.sampled_from([1, 2, 4]),
    version=st.sampled_from(["paper", "v1", "v2", "v2+"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    strided=st.booleans(),
)
def test_output_has_the_shape_of_the_input(name, b, spatial, heads, version, dtype, strided):
    layer = hb.Hamburger(8, ham=name, rank=3, heads=heads, version=version).eval().to(dtype)
    z = torch.randn(b, 8, *spatial, generator=torch.Generator().manual_seed(b)).to(dtype)
    if strided:
        z = z.movedim(1, -1).contiguous().movedim(-1, 1)
    y = layer(z)
    assert y.shape == z.shape
    assert y.dtype == z.dtype
    assert y.isfinite().all()
    flat = layer(z.flatten(2))
    assert_close(y.flatten(2), flat.to(torch.float64).to(dtype), slack=10)


def test_tokens_layout_matches_moved_axes():
    channels = hb.Hamburger(8, rank=3).eval()
    tokens = hb.Hamburger(8, rank=3, layout="tokens").eval()
    tokens.load_state_dict(channels.state_dict())
    z = torch.randn(2, 8, 30)
    assert_close(tokens(z.mT), channels(z).mT)


def test_eval_steps_matches_a_layer_with_those_steps():
    z = torch.randn(2, 8, 30)
    few, same = hb.Hamburger(8, rank=3, steps=2, eval_steps=9), hb.Hamburger(8, rank=3, steps=9)
    same.load_state_dict(few.state_dict())
    assert torch.equal(few.eval()(z), same.eval()(z))
    assert few.ham.steps == 2


def test_channels_last_is_preserved():
    layer = hb.Hamburger(8, rank=3).eval()
    z = torch.randn(2, 8, 6, 5)
    out = layer(z.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert_close(out, layer(z))
    layer = layer.to(memory_format=torch.channels_last)
    assert_close(layer(z.contiguous(memory_format=torch.channels_last)), layer(z))


def test_gradients_reach_every_parameter():
    for name in NAMES:
        for version in ("paper", "v1", "v2", "v2+"):
            layer = (
                hb.Hamburger(8, ham=name, rank=3, version=version, temperature=0.5)
                if name != "nmf"
                else hb.Hamburger(8, rank=3, version=version)
            )
            if version == "v2+":
                layer.burger_scale.data.fill_(1.0)
            layer(torch.randn(2, 8, 6, 6)).square().mean().backward()
            for key, parameter in layer.named_parameters():
                assert parameter.grad is not None and parameter.grad.norm() > 0, (name, version, key)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hb.Hamburger(8, versoin="v1"), "no option 'versoin'; did you mean 'version'"),
        (lambda: hb.Hamburger(8, version="v3"), "no version 'v3'.*known: paper, v1, v2, v2+"),
        (lambda: hb.Hamburger(8, heads=3), "3 heads do not divide the inner width 8"),
        (lambda: hb.Hamburger(8, init="radnom"), "did you mean 'random'"),
        (lambda: hb.Hamburger(8, init="learned", grad="one-step"), "init='learned' needs grad='bptt'"),
        (lambda: hb.Hamburger(8, parts={"hma"}), "did you mean 'ham'"),
        (lambda: hb.Hamburger(8, parts=()), "at least one of"),
        (lambda: hb.Hamburger(8, inner=4, parts={"ham"}), "inner=4 for channels=8"),
        (lambda: hb.Hamburger(8, parts={"ham"}, version="v2"), "not of 'v2'"),
        (lambda: hb.Hamburger(8, dual=True), "dual=True belongs to version='v2\\+'"),
        (lambda: hb.Hamburger(8, dual=True, version="v2+", init="online"), "one row per position"),
        (lambda: hb.Hamburger(8, ham=hb.NMF(), rank=4), "rank cannot be combined with a ham value"),
        (lambda: hb.Hamburger(8, norm="group"), "multiple of 32"),
        (lambda: hb.Hamburger(8, norm="bacth"), "did you mean 'batch'"),
        (lambda: hb.Hamburger(0), "channels must be a whole number of at least 1"),
        (lambda: hb.Hamburger(8, steps=-1), "steps"),
        (lambda: hb.Hamburger(8, layout="token"), "did you mean 'tokens'"),
        (lambda: hb.create_context("nmf", channels=8, rnk=2), "no option 'rnk'; did you mean 'rank'"),
        (lambda: hb.create_context("nfm", channels=8), "no context 'nfm'; did you mean 'nmf'"),
        (lambda: hb.Hamburger(8)(torch.rand(2, 9, 5)), r"built for 8 channels, got \(2, 9, 5\)"),
        (lambda: hb.Hamburger(8)(torch.rand(2, 5, 8)), "layout='tokens'"),
        (lambda: hb.Hamburger(8, layout="tokens")(torch.rand(2, 8, 5)), "layout='channels'"),
        (lambda: hb.Hamburger(8)(torch.rand(2, 8)), "1, 2 or 3 spatial axes"),
        (lambda: hb.Hamburger(8)(None), "the input must be a torch.Tensor, got NoneType"),
        (lambda: hb.Hamburger(8)(torch.rand(0, 8, 5)), "at least one entry"),
        (lambda: hb.Hamburger(8, parts=3), "parts must be some of"),
        (lambda: hb.Hamburger(8, seed="a"), "seed must be a whole number"),
        (lambda: hb.Hamburger(8, online_momentum=2), "online_momentum must be .* at most 1, got 2"),
        (lambda: hb.Hamburger(8, norm_momentum="a"), "norm_momentum"),
        (lambda: hb.Hamburger(8, dual="no", version="v2+"), "dual must be True or False"),
        (lambda: hb.Hamburger(8, grad=hb.Implicit), "no gradient"),
        (lambda: hb.HamLayer("nmf", 8)(torch.rand(2, 6, 5)), r"built for b d n with d = 8, got \(2, 6, 5\)"),
        (lambda: hb.Hamburger(8)(torch.ones(2, 8, 5, dtype=torch.int64)), "floating point"),
    ],
)
def test_messages(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_contexts_by_name():
    assert {"nmf", "vq", "cd"} <= set(hb.list_contexts())
    layer = hb.create_context("cd", channels=16, rank=4, temperature=0.1)
    assert isinstance(layer, hb.Hamburger)
    assert layer.ham.ham == hb.CD(rank=4, temperature=0.1)


def test_single_position_can_be_trained_on():
    layer = hb.Hamburger(8, rank=2).train()
    before = layer.norm.running_mean.clone()
    layer(torch.randn(1, 8, 1, 1)).square().mean().backward()
    assert torch.equal(layer.norm.running_mean, before)  # one value has no statistics
    layer(torch.randn(2, 8, 1, 1))
    assert not torch.equal(layer.norm.running_mean, before)
    assert isinstance(torch.nn.SyncBatchNorm.convert_sync_batchnorm(layer).norm, torch.nn.SyncBatchNorm)


def test_breads_are_initialised_as_in_the_authors_code():
    layer = hb.Hamburger(256, inner=512)
    for bread, out in ((layer.lower, 512), (layer.upper, 256)):
        assert bread.weight.std().item() == pytest.approx((2 / out) ** 0.5, rel=0.02)
        assert abs(bread.weight.mean().item()) < 1e-3
    assert layer.upper.bias is None
    assert layer.lower.bias.abs().max() <= 256**-0.5


def test_every_ham_option_is_a_keyword_of_the_layer():
    known = options_of(hb.Hamburger)
    set_by_the_layer = {"grid", "weights", "taken"}
    for ham in (hb.NMF, hb.VQ, hb.CD, hb.HALS, hb.Robust, hb.Local, hb.Windowed, hb.Learned):
        assert {field.name for field in dataclasses.fields(ham)} - set_by_the_layer <= known
    assert hb.Hamburger(32, ham="local", smoothness=2.0).ham.ham == hb.Local(8, smoothness=2.0)
    assert hb.Hamburger(32, ham="windowed", window=4, local_rank=3).ham.ham == hb.Windowed(8, window=4, local_rank=3)
    robust = {"threshold": 0.5, "component": "sparse"}
    assert hb.Hamburger(32, ham="robust", **robust).ham.ham == hb.Robust(8, **robust)
    assert hb.Hamburger(32, ham="learned", relaxation=1.5).ham.ham == hb.Learned(8, relaxation=1.5)
    assert hb.Hamburger(32, ham="vq", temperature=0.1, constant_norms=True).ham.ham == hb.VQ(8, 0.1, True)
    assert hb.Hamburger(32, ham="cd", beta=0.2).ham.ham == hb.CD(rank=8, beta=0.2)
    nmf = {"eps": 1e-3, "codes_init": "cosine", "codes_temperature": 0.5, "final_update": False}
    assert hb.Hamburger(32, **nmf).ham.ham == hb.NMF(rank=8, **nmf)


def test_ham_option_raises_for_other_hams():
    with pytest.raises(hb.OptionError, match=r"Hamburger with ham 'nmf' has no option 'beta'.*known: .*eps"):
        hb.Hamburger(32, beta=0.1)
    with pytest.raises(hb.OptionError, match="temperature cannot be combined with a ham value"):
        hb.Hamburger(32, ham=hb.VQ(4), temperature=0.1)


def test_ham_options_reach_a_registered_user_ham(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Scaled(hb.VQ):
        factor: float = 1.0

    monkeypatch.setitem(hb.hams._entries, "scaled", Scaled)
    layer = hb.Hamburger(32, ham="scaled", ham_options={"factor": 2.0}, temperature=0.5)
    assert layer.ham.ham == Scaled(rank=8, temperature=0.5, factor=2.0)
    assert "ham=Scaled(rank=8, temperature=0.5, factor=2.0)" in repr(layer)
    with pytest.raises(hb.OptionError, match="no option 'facter'; did you mean 'factor'"):
        hb.Hamburger(32, ham="scaled", ham_options={"facter": 2.0})
    with pytest.raises(hb.OptionError, match="'rank' is given twice"):
        hb.Hamburger(32, rank=4, ham_options={"rank": 4})
    with pytest.raises(hb.OptionError, match="ham_options must be a mapping"):
        hb.Hamburger(32, ham_options=3)


def test_repr_is_one_line():
    assert repr(hb.Hamburger(512)) == (
        "Hamburger(512, ham=NMF(rank=64), steps=6, grad=one-step, init=random, version=paper, parameters=525,824)"
    )
    layer = hb.Hamburger(
        64, ham="cd", beta=0.2, rank=4, inner=32, eval_steps=7, heads=2, version="v2+", dual=True, layout="tokens"
    )
    assert repr(layer) == (
        "Hamburger(64, ham=CD(rank=4, beta=0.2), steps=6, eval_steps=7, grad=one-step, init=random, inner=32, heads=2, "
        f"version=v2+, dual=True, layout=tokens, parameters={count(layer):,})"
    )
    assert "ham=None, version=v1, parts=['lower', 'upper']" in repr(
        hb.Hamburger(8, version="v1", parts=["lower", "upper"])
    )


def test_rank_warning_points_at_the_caller():
    with pytest.warns(UserWarning, match="rank 8 is not below the inner width 8") as caught:
        hb.Hamburger(8, rank=8)
    assert caught[0].filename == __file__
