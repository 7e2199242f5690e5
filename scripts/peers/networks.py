"""Networks for scripts/onnx-models: torchvision's and timm's classifiers with random weights, and some of our own."""
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

OWN, TIMM = {}, (
    "coatnet_nano_rw_224", "dla34", "edgenext_xx_small", "gernet_s", "ghostnet_100", "mixer_s32_224", "mobilevit_xxs",
    "poolformer_s12", "repvgg_a0", "resnest14d", "tf_efficientnetv2_b0", "vit_tiny_patch16_224")
TOO_LARGE = ("vit_h_14", "regnet_y_128gf")  # over 600 million parameters: over 20 GB in float64, with momenta


def own(network):
    OWN[network.__name__.lower()] = network
    return network


def convolution(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


@own
class UNet(nn.Module):
    """Ronneberger et al. 2015, with half of the levels, and a classifier of the mean of its map."""

    def __init__(self, classes):
        super().__init__()
        self.down1, self.down2, self.bottom = convolution(3, 16), convolution(16, 32), convolution(32, 64)
        self.up2, self.join2 = nn.ConvTranspose2d(64, 32, 2, 2), convolution(64, 32)
        self.up1, self.join1 = nn.ConvTranspose2d(32, 16, 2, 2), convolution(32, 16)
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        x = self.bottom(functional.max_pool2d(second, 2))
        x = self.join2(torch.cat((second, self.up2(x)), 1))
        x = self.join1(torch.cat((first, self.up1(x)), 1))
        return self.head(x).mean((2, 3))


@own
class Autoencoder(nn.Module):
    """A convolutional encoder, a decoder by resizing, and a classifier of what the decoder restores and of the code."""

    def __init__(self, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 4, 2, 1), nn.ELU())
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, 1, 1), nn.Softplus(),
                                     nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 3, 3, 1, 1), nn.Tanh())
        self.restored, self.code = nn.Linear(3 * 16 * 16, classes), nn.Linear(32, classes)

    def forward(self, x):
        code = self.encoder(x)
        restored = functional.avg_pool2d(self.decoder(code), x.shape[-1] // 16)
        return self.restored(torch.flatten(restored, 1)) + self.code(functional.adaptive_avg_pool2d(code, 1).flatten(1))


@own
class TransposedDenseNet(nn.Module):
    """Dense blocks (Huang et al. 2017) on the way down and, behind transposed convolutions, on the way up."""

    class Block(nn.Module):
        def __init__(self, channels, growth, layers):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(channels + i * growth), nn.ReLU(),
                              nn.Conv2d(channels + i * growth, growth, 3, 1, 1, bias=False)) for i in range(layers))

        def forward(self, x):
            for layer in self.layers:
                x = torch.cat((x, layer(x)), 1)
            return x

    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 5, 2, 2, bias=False)
        self.down, self.squeeze = self.Block(24, 12, 3), nn.Conv2d(60, 32, 1, bias=False)
        self.bottom = self.Block(32, 12, 3)
        self.up, self.top = nn.ConvTranspose2d(68, 24, 4, 2, 1, bias=False), self.Block(24, 8, 2)
        self.norm, self.head = nn.BatchNorm2d(40), nn.Linear(40, classes)

    def forward(self, x):
        x = self.squeeze(self.down(functional.relu(self.stem(x))))
        x = self.top(self.up(self.bottom(functional.avg_pool2d(x, 2))))
        return self.head(functional.relu(self.norm(x)).mean((2, 3)))


@own
class GroupedAlexNet(nn.Module):
    """The network of Krizhevsky et al. 2012, narrower: two groups, and normalization across channels."""

    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 48, 7, 2, 3), nn.ReLU(), nn.LocalResponseNorm(5, 1e-4, 0.75, 2), nn.MaxPool2d(3, 2),
            nn.Conv2d(48, 96, 5, 1, 2, groups=2), nn.ReLU(), nn.LocalResponseNorm(5, 1e-4, 0.75, 2), nn.MaxPool2d(3, 2),
            nn.Conv2d(96, 96, 3, 1, 1), nn.ReLU(), nn.Conv2d(96, 64, 3, 1, 1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2))
        self.classifier = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


@own
class SqueezedTransformer(nn.Module):
    """Patches by a strided convolution, then PyTorch's own encoder layers, and the mean of the tokens."""

    def __init__(self, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, 64))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
                                    for _ in range(2))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def names(collection):
    if collection == "torchvision":
        return [name for name in torchvision.models.list_models(module=torchvision.models) if name not in TOO_LARGE]
    return [f"{collection}/{name}" for name in (TIMM if collection == "timm" else OWN)]


def sizes(name):
    """Pixels of a side, and images: cheap ones, but over 60 values for each statistic of batch norm, or almost."""
    if name.startswith("maxvit") or name.endswith("_224"):
        return 224, 4
    if name == "inception_v3":
        return 107, 16
    if name.startswith(("alexnet", "convnext", "own/", "squeezenet", "swin", "vit_")):
        return 64, 4
    return 34, 16  # sides of 17, 9, 5, 3, and 2 pixels


def create(name, classes):
    if name.startswith("own/"):
        return OWN[name.removeprefix("own/")](classes)
    if name.startswith("timm/"):
        return timm.create_model(name.removeprefix("timm/"), num_classes=classes)
    options = {"image_size": sizes(name)[0]} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **options)


def build(name, classes):
    """A network with random weights, always the same ones, without dropout and stochastic depth.

    A gradient jumps if a ReLU's input changes its sign, and among millions of inputs some are as close to zero as float32
    can tell. Batch norms get a shift by which a hundredth of their outputs are below zero, so that few are close to it.
    """
    torch.manual_seed(1)
    model = create(name, classes)
    if any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in model.modules()):
        size = sizes(name)[0]
        model(torch.zeros(1, 3, size, size))
    hard = any(isinstance(module, nn.Hardswish) for module in model.modules())  # not smooth at 3
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not hard:
            nn.init.uniform_(module.bias, 2, 3)
        elif isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
        for probability in ("dropout", "attention_dropout", "drop_rate"):
            if isinstance(getattr(module, probability, None), float):
                setattr(module, probability, 0.0)
    return model
