"""The network of the training examples."""

from torch import nn


def network_for(num_classes: int) -> nn.Module:
    """(B, 3, T, H, W) to scores of the classes: three convolutions over space and time."""
    return nn.Sequential(
        nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv3d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )
