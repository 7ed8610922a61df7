"""The Hugging Face Trainer trains a session as its model."""

import pytest
from second_task import SECOND
from torch import nn

pytestmark = pytest.mark.integration
pytest.importorskip("accelerate", reason="accelerate comes with the extra [test-integrations]")
transformers = pytest.importorskip("transformers", reason="transformers comes with the extra [test-integrations]")


def loss(scores, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(scores, labels)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("key", "names"), [("label", None), ("labels", ["labels"])]
)  # the Trainer keeps no other column
def test_a_task_is_learned_through_the_hugging_face_trainer(started, seen, tmp_path, key, names):
    data = [{"inputs": image, key: label} for image, label in zip(*SECOND.train, strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=4, per_device_train_batch_size=16, learning_rate=0.02,
        use_cpu=True, label_names=names, report_to=[], disable_tqdm=True, logging_strategy="no", save_strategy="epoch",
    )  # fmt: skip
    with started.session() as session:
        trainer = transformers.Trainer(model=session, args=arguments, train_dataset=data, compute_loss_func=loss)
        trainer.train()
        assert trainer.state.global_step == 16
        seen(session, trainer.optimizer.optimizer)
        assert list(tmp_path.glob("checkpoint-*/*.safetensors"))
        session.keep()
