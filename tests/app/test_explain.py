"""What `ham app` shows of a photo: labels as `Predictor`, atoms as `decompose`, solves with other steps and ranks."""

from __future__ import annotations

import pytest
import torch

import hamburger as hb
from hamburger.app.explain import MAX_SIDE, Model, change_ham, draw_heat, explain, find_atom, shrink
from hamburger.checkpoints.weights_file import Info
from hamburger.errors import InputError, OptionError
from hamburger.segmentation.model import create_model, save_weights

CPU = torch.device("cpu")
INFO = Info(classes=("sky", "sea", "land"), palette=((0, 0, 255), (0, 255, 255), (0, 255, 0)))


def save(path, context="nmf", side=None, **options):
    options = {"rank": 4, "steps": 3, **options} if context in ("nmf", "cd") else {}
    tiny = {"backbone": "tiny", "output_stride": 4, "head_options": {"width": 32}}
    net = create_model("hamnet", num_classes=3, context=context, context_options=options, **tiny)
    save_weights(path, net.eval(), Info(INFO.model, INFO.classes, INFO.palette, side=side))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    return Model.open(save(tmp_path_factory.mktemp("run") / "best.safetensors").parent, CPU)


@pytest.fixture
def image():
    return torch.randint(0, 256, (3, 37, 50), dtype=torch.uint8)


@pytest.mark.parametrize("side", [None, 40])
@pytest.mark.parametrize("context", ["nmf", "cd", "sa", None])
def test_labels_are_those_of_the_predictor(context, side, tmp_path, image):
    path = save(tmp_path / "net.safetensors", context, side)
    shown = explain(Model.open(path, CPU), image)
    assert torch.equal(shown.label, hb.Predictor(path, device=CPU)(image))
    assert sum(shown.shares.values()) == pytest.approx(1)
    assert (shown.solve is None) == (context in ("sa", None))


def test_weights_cannot_demand_a_large_image(tmp_path, image):
    """The network sees an image whole here, and as tiles in `Predictor`."""
    model = Model.open(save(tmp_path / "net.safetensors", "nmf", side=8192), CPU)
    sizes = []
    model.net.register_forward_pre_hook(lambda _, args: sizes.append(tuple(args[0].shape[2:])))
    assert explain(model, image).label.shape == (37, 50)
    assert sizes == [(round(37 / 50 * MAX_SIDE), MAX_SIDE)]


def test_atoms_are_sorted_and_their_shares_sum_to_one(model, image):
    solve = explain(model, image).solve
    assert solve.maps.shape == (4, 10, 14)
    assert (solve.shares.diff() <= 0).all() and solve.shares.sum() == pytest.approx(1)
    bases, codes = solve.codes.bases[0, 0], solve.codes.maps[0, 0]
    for atom, shown in enumerate(solve.maps):  # the norms of the columns of its rank-one matrix
        part = bases[:, atom, None] @ codes[atom].flatten()[None]
        torch.testing.assert_close(part.norm(dim=0).view_as(shown), shown)
    assert solve.before.shape == solve.after.shape == (3, 10, 14)


def test_the_atom_at_a_point_has_the_largest_part_there(model, image):
    solve = explain(model, image).solve
    for x, y, column, row in ((0, 0, 0, 0), (0.5, 0.25, 7, 2), (1, 1, 13, 9)):
        atom, share = find_atom(solve, x, y)
        parts = solve.maps[:, row, column]
        assert atom == parts.argmax() and share == pytest.approx(float(parts[atom] / parts.sum()))


def test_trained_steps_and_rank_change_nothing(model, image):
    one, other = explain(model, image), explain(model, image, steps=3, rank=4)
    assert torch.equal(one.label, other.label)
    assert one.solve.error == other.solve.error


def test_other_solves_leave_the_network_as_it_was(model, image):
    before = {name: value.clone() for name, value in model.net.state_dict().items()}
    trained = explain(model, image).solve.error
    assert explain(model, image, rank=1).solve.error > trained
    assert explain(model, image, steps=0).solve.error > trained
    assert explain(model, image, rank=8).solve.maps.shape[0] == 8
    after = model.net.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert (model.ham.eval_steps, model.ham.ham.rank) == (3, 4) and not model.ham._forward_hooks


@pytest.mark.parametrize("init", ["random", "fixed", "online", "learned"])
@pytest.mark.parametrize("rank", [2, 4, 6])
def test_a_changed_ham_starts_from_the_first_bases(init, rank):
    layer = hb.HamLayer(hb.NMF(rank=4), 8, heads=2, init=init).eval()
    x = torch.rand(1, 8, 30)
    changed = change_ham(layer, 5, rank)
    stored, bases = layer.dictionary.bases, changed.dictionary.bases
    assert bases.shape == (2, 4, rank) and torch.equal(bases[..., :4], stored[..., :rank])
    out = hb.decompose(x.unflatten(1, (2, 4))[0], hb.NMF(rank=rank), steps=5, bases=bases.detach())
    torch.testing.assert_close(changed(x), out.reconstruction.flatten(0, 1)[None])
    assert torch.equal(change_ham(layer, 5, rank).dictionary.bases, bases)


@pytest.mark.parametrize("rank", [2, 4, 6])
def test_a_changed_ham_starts_from_columns(rank):
    layer, x = hb.HamLayer(hb.NMF(rank=4), 8, init="columns").eval(), torch.rand(1, 8, 30)
    expected = hb.decompose(x, hb.NMF(rank=rank), steps=5, bases="columns").reconstruction
    torch.testing.assert_close(change_ham(layer, 5, rank)(x), expected)


@pytest.mark.parametrize("rank", [4, 6, 8, 9, 16])
def test_a_changed_ham_keeps_the_rank_of_its_windows(rank):
    layer = hb.HamLayer(hb.Windowed(rank=8, local_rank=3, window=2), 8).eval()
    changed = change_ham(layer, 2, rank)
    assert changed(torch.rand(1, 8, 4, 4)).shape == (1, 8, 4, 4) and changed.ham.local_rank == 3
    with pytest.raises(OptionError, match=r"local_rank must be below the rank 3, .*; lower it or raise the rank"):
        change_ham(layer, 2, 3)


def test_heads_have_atoms_of_their_own(tmp_path, image):
    model = Model.open(save(tmp_path / "net.safetensors", heads=2), CPU)
    solve = explain(model, image).solve
    assert solve.maps.shape[0] == 8 and solve.shares.sum() == pytest.approx(1)


def test_heat_is_brightest_where_the_map_is_largest():
    values = torch.zeros(4, 5)
    values[1, 3] = 2.0
    drawn = draw_heat(torch.full((3, 40, 50), 100, dtype=torch.uint8), values)
    assert drawn.shape == (3, 40, 50) and drawn.dtype == torch.uint8
    brightest = int(drawn.sum(0).argmax())
    assert abs(brightest // 50 - 13) <= 1 and abs(brightest % 50 - 37) <= 1
    assert drawn[:, -1, 0].tolist() == [60, 60, 60]


def test_large_images_are_reduced():
    assert shrink(torch.zeros(3, 20, 3 * MAX_SIDE, dtype=torch.uint8)).shape == (3, 7, MAX_SIDE)
    image = torch.zeros(3, 9, 7, dtype=torch.uint8)
    assert shrink(image) is image


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no .*nowhere"):
        Model.open(tmp_path / "nowhere", CPU)
