"""What few-shot sessions are given: what cannot be is refused in a sentence, before anything is trained."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import forgetfree as ff
from few_shots import assert_same, backbone, sessions
from forgetfree.archive import load, save
from forgetfree.errors import InputError
from forgetfree.heads import HEADS
from forgetfree.methods import METHODS
from zoo import FSCIL

QUICK = ff.Recipe(epochs=2, batch_size=32, lr=0.01)
KEEPING = ("softnet", "icarl", "rebalance", "fsll", "f2m")
EVERY = pytest.mark.parametrize("name", FSCIL)


def make(name, module=None, **settings):
    needed = {"capacity": 0.5} if name in ("softnet", "hardnet") else {}
    return METHODS[name](module or backbone(), recipe=QUICK, session=QUICK, **needed, **settings)


class Samples(Dataset):
    """The data of a task sample by sample, in another form."""

    def __init__(self, task, form):
        self.inputs, self.labels = task.train
        self.form = form

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, at):
        return self.form(self.inputs[at]), int(self.labels[at])


@EVERY
@pytest.mark.parametrize(
    "inputs", [torch.randn(2, 9), torch.randn(2, 3, 8), torch.ones(2, 8).long()], ids=["wider", "deeper", "whole"]
)
def test_a_later_session_with_other_inputs_is_refused_in_words(name, inputs):
    (base, *_), _ = sessions(1, base=4)
    learner = make(name)
    learner.learn(base)
    before = learner.predict(base.train[0])
    with pytest.raises(InputError, match=r"'session 0' was learned on|alike"):
        learner.learn(ff.Task("other", ("x",), (inputs, torch.zeros(2, dtype=torch.long))))
    assert list(learner.tasks) == [base.name]
    assert torch.equal(learner.predict(base.train[0]), before)


@pytest.mark.parametrize("name", [name for name in FSCIL if name not in ("joint", "crt")])
def test_a_class_without_an_image_is_named_before_anything_is_trained(name):
    (base, *_), _ = sessions(1, base=4)
    learner, seen = make(name), []
    some = base.train[1] != 2
    with pytest.raises(InputError, match=r"'session 0': no training image is of class '0/2'"):
        learner.learn(replace(base, train=(base.train[0][some], base.train[1][some])), progress=seen.append)
    assert not seen


@EVERY
def test_a_dataset_of_arrays_learns_to_the_same_bits_as_tensors_and_can_be_saved(name, tmp_path):
    kept = {"exemplars": 2} if name in KEEPING else {}
    tasks, _ = sessions(2, base=4)
    plain, learner = make(name, **kept), make(name, **kept)
    for task in tasks:
        plain.learn(task)
        learner.learn(replace(task, train=Samples(task, lambda image: image.numpy())))
    for each in (plain, learner):
        getattr(each, "finish", lambda: None)()
    assert torch.equal(learner.predict(tasks[0].train[0]), plain.predict(tasks[0].train[0]))
    if name not in ("joint", "crt"):  # they count a Dataset by its first sample
        assert_same(learner, plain)
    save(learner, tmp_path / "a.ticket")
    assert torch.equal(
        load(tmp_path / "a.ticket", backbone()).predict(tasks[0].train[0]), plain.predict(tasks[0].train[0])
    )


@pytest.mark.parametrize("name", KEEPING)
def test_samples_that_are_not_one_tensor_cannot_be_kept_and_are_refused_before_training(name):
    (base, *_), _ = sessions(1, base=4)
    for form in (lambda image: {"x": image}, lambda image: (image, image)):
        seen = []
        with pytest.raises(InputError, match="samples are one tensor and a label"):
            make(name, exemplars=2).learn(replace(base, train=Samples(base, form)), progress=seen.append)
        assert not seen


@pytest.mark.parametrize("name", ["joint", "crt"])
def test_joint_training_counts_and_saves_samples_of_several_parts(name, tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = backbone()

        def forward(self, left, right):
            return self.inner(left + right)

    tasks, _ = sessions(1, base=4)
    learner = make(name, Sum())
    for task in tasks:
        learner.learn(replace(task, train=Samples(task, lambda image: (image, image))))
    learner.finish()
    counted = sum(value.numel() for key, value in learner.memory().training.items() if key.endswith("inputs"))
    assert counted == 2 * sum(task.train[0].numel() for task in tasks)
    save(learner, tmp_path / "a.ticket")


@EVERY
def test_settings_of_another_type_are_refused_when_a_learner_is_built(name):
    for settings, words in (({"heads": "cosine"}, "heads is a function"), ({"recipe": 3}, "recipe is a Recipe")):
        with pytest.raises(InputError, match=words):
            METHODS[name](backbone(), **({"capacity": 0.5} if name in ("softnet", "hardnet") else {}), **settings)
    with pytest.raises(InputError, match="session is a Recipe"):
        METHODS[name](backbone(), **({"capacity": 0.5} if name in ("softnet", "hardnet") else {}), session="x")
    with pytest.raises(InputError, match="a Task"):
        make(name).learn("hello")


@EVERY
def test_heads_that_cannot_be_are_refused_when_a_learner_is_built(name):
    state = torch.get_rng_state()
    made = {}
    for head, factory in HEADS.items():
        with suppress(InputError):
            made[head] = make(name, heads=factory)
    assert torch.equal(torch.get_rng_state(), state)
    wanted = {
        "rebalance": {"cosine_classifier"},
        "crt": {"linear", "linear_without_bias"},
        "s3c": {"cosine_base"},
        "joint": {"linear", "linear_without_bias", "cosine_classifier", "cosine_base"},  # class means learn nothing
    }
    certain = {"means", "normalised", "rooted", "centred", "teen", "lda", "bayes"}
    by_means = certain if name == "bayes_means" else {"euclidean", "cosine", "ridge", *certain}
    assert set(made) == wanted.get(name, by_means)


@pytest.mark.parametrize(("name", "settings"), [("fsll", {}), ("softnet", {"drift_compensation": True})])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_sessions_are_learned_in_other_types_too(name, settings, kind):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(kind)
    tasks, _ = sessions(2, base=4)
    learner = make(name, module, **settings)
    for task in tasks:
        learner.learn(task)
    assert bool(learner.predict(tasks[0].train[0]).isfinite().all())


def test_bases_of_nearby_settings_have_names_of_their_own():
    assert make("f2m", bound=0.01).base_name != make("f2m", bound=0.010000004).base_name
    soft = [METHODS["softnet"](backbone(), capacity=c).base_name for c in (0.3, 0.3000001)]
    assert soft == ["soft-0.3", "soft-0.3000001"]


def test_a_soft_mask_and_a_block_that_are_not_there_are_refused():
    with pytest.raises(InputError, match="no shared tensor 'nope'"):
        make("softnet").soft_mask("nope")
    with pytest.raises(InputError, match="trainable_block=3"):
        make("softnet", trainable_block=3)
