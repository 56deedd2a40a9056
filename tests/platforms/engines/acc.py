"""A training of a few steps with accelerate: acc.py. Prints what accelerate made of its configuration."""

import accelerate
import torch

one = accelerate.Accelerator()
print("accelerate: rank", one.process_index, "of", one.num_processes, str(one.distributed_type).split(".")[-1],
      one.mixed_precision, flush=True)
model, data = torch.nn.Linear(8, 8), torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=2)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, data = one.prepare(model, optimizer, data)
for batch in data:
    loss = model(batch).pow(2).mean()
    one.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
total = one.reduce(torch.ones(1))
print("trained: rank", one.process_index, "sum", int(total.item()), type(model).__name__, flush=True)
# No rank ends while another one still needs its connection.
one.wait_for_everyone()
one.end_training()
