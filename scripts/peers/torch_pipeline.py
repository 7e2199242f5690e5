"""Training steps of ResNet-50 with torch.distributed.pipelining on the CPU: stages in ranks, over gloo (see step_rank.py).

--settings "cut 8, channels last, eager": the second stage begins with the eighth of the 16 residual blocks. A step is that
of BATCH images for each rank, on one batch of all ranks' images in MICRO_BATCHES micro-batches, in the schedule 1F1B.
"""
import torch
import torchvision
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import step_rank
import torch_ddp

MICRO_BATCHES = 8
SIZE, CLASSES = 64, 10


class Reordered(torch.autograd.Function):
    """Between stages, because gloo sends only tensors in NCHW."""

    @staticmethod
    def forward(context, values, layout, of_gradient):
        context.layout = of_gradient
        return values.contiguous(memory_format=layout)

    @staticmethod
    def backward(context, gradient):
        return gradient.contiguous(memory_format=context.layout), None, None


class Reorder(nn.Module):
    def __init__(self, layout, of_gradient):
        super().__init__()
        self.layouts = layout, of_gradient

    def forward(self, values):
        return Reordered.apply(values, *self.layouts)


def layers():
    """ResNet-50's layers in a chain, and the place of its first residual block."""
    network = torchvision.models.resnet50(num_classes=CLASSES)
    before = [torch_ddp.Normalize(), network.conv1, network.bn1, network.relu, network.maxpool]
    blocks = [block for stage in (network.layer1, network.layer2, network.layer3, network.layer4) for block in stage]
    return [*before, *blocks, network.avgpool, nn.Flatten(), network.fc], len(before)


def make_step(options):
    torch.manual_seed(1)
    chain, first = layers()
    cut = first + int(options.settings[0].removeprefix("cut ")) - 1
    layout = torch_ddp.LAYOUTS[options.settings[1]]
    own = ([*chain[:cut], Reorder(torch.contiguous_format, layout)] if options.rank == 0 else
           [Reorder(layout, torch.contiguous_format), *chain[cut:]])
    own = nn.Sequential(*own).to(memory_format=layout).train()
    batch = options.batch * options.ranks
    images = torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8).to(memory_format=layout)
    labels = torch.randint(0, CLASSES, (batch,))
    optimizer = torch.optim.SGD(own.parameters(), lr=step_rank.LEARNING_RATE, momentum=step_rank.MOMENTUM, fused=True)
    computed = torch.compile(own) if "compiled" in options.settings else own
    stage = PipelineStage(computed, options.rank, options.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.CrossEntropyLoss())

    def step():
        optimizer.zero_grad(set_to_none=True)
        if options.rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=[])
        optimizer.step()
    return step


def main():
    options = step_rank.parse_options()
    torch_ddp.join(options)
    step_rank.answer(options, make_step(options), lambda: None, torch.__version__)


if __name__ == "__main__":
    main()
