"""Trains a small network with DistributedDataParallel on random data, and prints the time of a step:

  mpirun -np 2 python src/torch/examples/ddp.py [annulus|gloo]
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

backend = sys.argv[1] if len(sys.argv) > 1 else "annulus"
dist.init_process_group(backend)
torch.manual_seed(1)
torch.set_num_threads(1)
network = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
network = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
images, labels = torch.randn(32, 1024), torch.randint(0, 10, (32,))

times = []
for step in range(30):
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)

mean = loss.detach().clone()
dist.all_reduce(mean, dist.ReduceOp.AVG)
if dist.get_rank() == 0:
    print(f"{backend}, {dist.get_world_size()} ranks: loss {mean.item():.4f}, median step {1e3 * sorted(times[5:])[12]:.1f} ms")
dist.destroy_process_group()
