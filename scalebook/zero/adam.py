"""Adam in mixed precision, on flat pieces of a model: the 12 bytes a parameter that ZeRO shards first.

The working weights and gradients have 16 bits. The optimizer keeps a copy of the weights in 32 bits, the master
weights, because an update is often smaller than half the spacing of 16-bit numbers and would be rounded away
(Micikevicius et al., arXiv:1710.03740, section 3.1), and two moments of the same size (Kingma and Ba, arXiv:1412.6980).
"""

import torch

from scalebook.borders import guard
from scalebook.zero.kinds import KINDS, TOGETHER

# The dtype of the master weights and the moments for each dtype of the working weights.
MASTER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


class MixedAdam:
    """Adam with decoupled weight decay (AdamW) on pieces that this rank owns, whatever they are pieces of.

    `masters` are flat tensors, updated in place; `first` and `second` are the moments, of the same shape and dtype.
    Source: arXiv:1412.6980, algorithm 1; the decay is arXiv:1711.05101, algorithm 2 (multiplied by the learning rate).

    >>> adam = MixedAdam([torch.ones(3)], learning_rate=0.1)
    >>> adam.step([torch.tensor([2.0, -2.0, 0.5], dtype=torch.bfloat16)], scale=0.5)
    >>> adam.masters[0].round(decimals=4)
    tensor([0.9000, 1.1000, 0.9000])
    """

    def __init__(self, masters, learning_rate=1e-3, betas=(0.9, 0.999), epsilon=1e-8, decay=0.0):
        """Start with moments of zero."""
        self.masters, self.steps = masters, 0
        self.first = [torch.zeros_like(master) for master in masters]
        self.second = [torch.zeros_like(master) for master in masters]
        self.learning_rate, self.betas, self.epsilon, self.decay = learning_rate, betas, epsilon, decay

    def step(self, gradients, scale=1.0):
        """Update each piece with its gradient, of any float dtype, times `scale`."""
        self.steps += 1
        beta_1, beta_2 = self.betas
        rate = self.learning_rate / (1 - beta_1**self.steps)
        correction = (1 - beta_2**self.steps) ** 0.5
        for master, gradient, first, second in zip(self.masters, gradients, self.first, self.second, strict=True):
            gradient = gradient.to(master.dtype) * scale
            first.lerp_(gradient, 1 - beta_1)
            second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            master.mul_(1 - self.learning_rate * self.decay)
            master.addcdiv_(first, second.sqrt() / correction + self.epsilon, value=-rate)


guard(globals(), KINDS, "MixedAdam", together=TOGETHER)
