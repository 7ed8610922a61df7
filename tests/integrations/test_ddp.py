"""DistributedDataParallel trains a session in two processes, each with its own learner; both keep the same task."""

import os
import socket
from pathlib import Path

import pytest
import torch
from second_task import FIRST, SECOND, Started
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from forgetfree.files import digest_of

pytestmark = pytest.mark.integration
WORLD = 2


def test_two_processes_learn_one_task_and_keep_the_same_ticket(tmp_path):
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo, by which processes on a CPU talk")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(learn_in_one_of_two, (port, str(tmp_path)), WORLD)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD))
    assert one == other
    assert one["steps"] == 8


def learn_in_one_of_two(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    started = Started()
    steps = 0
    with started.session() as session:
        model = DistributedDataParallel(session)
        assert len(list(model.parameters())) == len(list(session.parameters())) > 0
        assert all(one is other for one, other in zip(model.parameters(), session.parameters(), strict=True))
        assert model._get_ddp_logging_data()["num_parameter_tensors"] == len(list(session.parameters()))
        data = TensorDataset(*SECOND.train)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        sampler = DistributedSampler(data, WORLD, rank, seed=0)
        for epoch in range(4):
            sampler.set_epoch(epoch)
            for inputs, labels in DataLoader(data, batch_size=16, sampler=sampler):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                steps += 1
        session.keep()
    learner = started.learner
    tickets = learner.memory().tickets
    found = {
        "steps": steps,
        "tickets": {name: digest_of({k: m.bits for k, m in each.masks.items()}) for name, each in tickets.items()},
        "own": {name: digest_of(dict(each.own)) for name, each in tickets.items()},
        "weights": digest_of(dict(learner.memory().shared)),
        "heads": {name: digest_of(head) for name, head in learner.memory().heads.items()},
        "answers": digest_of({task.name: learner.predict(task.train[0], task.name) for task in (FIRST, SECOND)}),
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
