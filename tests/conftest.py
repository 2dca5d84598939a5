"""One thread: on shared cores several threads wait for each other far longer than they compute."""

import torch

torch.set_num_threads(1)
