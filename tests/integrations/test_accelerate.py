"""Accelerate prepares a session, its optimizer and a loader, and its loop is as always."""

import pytest
import torch
from second_task import SECOND
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.integration
accelerate = pytest.importorskip("accelerate", reason="accelerate comes with the extra [test-integrations]")


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_task_is_learned_through_accelerate(started, seen, precision):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    with started.session() as session:
        model, optimizer, loader = accelerator.prepare(
            session,
            torch.optim.Adam(session.parameters(), lr=0.02),
            DataLoader(TensorDataset(*SECOND.train), batch_size=16, shuffle=True),
        )
        seen(session, optimizer.optimizer)
        for _ in range(4):
            for inputs, labels in loader:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        accelerator.unwrap_model(model).keep()
