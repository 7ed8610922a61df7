"""Lightning trains a session: a LightningModule that holds it, and the Trainer as always."""

import pytest
import torch
from second_task import SECOND
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.integration
lightning = pytest.importorskip("lightning", reason="lightning comes with the extra [test-integrations]")


class Lit(lightning.LightningModule):
    def __init__(self, session):
        super().__init__()
        self.session = session

    def training_step(self, batch, _):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.session(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


@pytest.mark.filterwarnings("ignore")
def test_a_task_is_learned_through_lightning(started, seen, tmp_path):
    with started.session() as session:
        module = Lit(session)
        trainer = lightning.Trainer(
            max_epochs=4, accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(*SECOND.train), batch_size=16, shuffle=True))
        assert trainer.global_step == 16
        seen(session, trainer.optimizers[0])
        checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
        assert set(checkpoint["state_dict"]) == {f"session.{name}" for name in session.state_dict()}
        session.keep()
