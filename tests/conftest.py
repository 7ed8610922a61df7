"""All tests: one thread of torch per process, since two processes share the machine; no deadlines on a noisy one."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
