"""A line fitted by a training graph; the optimizer and the loss are PyTorch's own."""

import gflow as flow


class LinearTrainGraph(flow.nn.Graph):
    def __init__(self, model, loss_fn, optimizer):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.add_optimizer(optimizer)

    def build(self, x, y):
        prediction = self.model(x)
        loss = self.loss_fn(prediction, y)
        loss.backward()
        return loss, prediction


flow.manual_seed(0)
x = flow.randn(16, 3)
y = x @ flow.tensor([[2.0], [-1.0], [0.5]]) + 3.0

model = flow.nn.Linear(3, 1)
loss_fn = flow.nn.MSELoss(reduction="sum")
optimizer = flow.optim.SGD(model.parameters(), lr=1e-2)
train_step = LinearTrainGraph(model, loss_fn, optimizer)

for step in range(101):
    loss, prediction = train_step(x, y)
    if step % 20 == 0:
        print(f"step {step:3}   loss {loss.item():10.6f}")

# The graph trained the module's own parameters.
print("weight:", model.weight.data, "bias:", model.bias.data)
assert loss.item() < 1e-3
