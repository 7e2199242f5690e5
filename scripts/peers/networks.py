"""Networks for scripts/onnx-models: the classifiers of several collections with random weights, and some of our own."""
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

OWN, TIMM = {}, (
    "coatnet_nano_rw_224", "dla34", "edgenext_xx_small", "gernet_s", "ghostnet_100", "mixer_s32_224", "mobilevit_xxs",
    "poolformer_s12", "repvgg_a0", "resnest14d", "tf_efficientnetv2_b0", "vit_tiny_patch16_224")
# Small networks of nearly all of timm's modules, at the size that timm gives them.
FAMILIES = """
    resnet18 resnet10t ecaresnet26t resnetblur18 seresnet18 mobilenetv3_small_050 mobilenetv2_035 mnasnet_small
    mixnet_s lcnet_035 mobilenetv4_conv_small_035 efficientnet_b0 tf_efficientnetv2_b0 vit_tiny_patch16_224
    deit_tiny_distilled_patch16_224 deit3_small_patch16_224 convnext_atto convnextv2_atto convnext_zepto_rms
    regnetx_002 regnety_002 regnetz_005 ghostnet_050 ghostnetv2_100 ghostnetv3_050 mobileone_s0 repvgg_a0
    gernet_s mobilevit_xxs mobilevitv2_050 poolformer_s12 poolformerv2_s12 caformer_s18 convformer_s18
    mixer_s32_224 resmlp_12_224 gmlp_ti16_224 edgenext_xx_small hiera_tiny_224 hieradet_small
    swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 maxvit_pico_rw_256
    coatnet_pico_rw_224 coatnext_nano_rw_224 levit_128s levit_conv_128s pit_ti_224 pvt_v2_b0 pvt_v2_b2_li
    xcit_nano_12_p16_224 eva02_tiny_patch14_224 vit_tiny_patch16_dinov3_qkvb vit_relpos_small_patch16_224
    vit_tiny_r_s16_p8_224 vit_base_patch16_siglip_gap_224 cait_xxs24_224 coat_tiny coat_lite_tiny convit_tiny
    crossvit_tiny_240 tnt_s_patch16_224 twins_svt_small twins_pcpvt_small visformer_tiny volo_d1_224 nest_tiny
    mvitv2_tiny gcvit_xxtiny davit_tiny focalnet_tiny_srf efficientformer_l1 efficientformerv2_s0
    efficientvit_b0 efficientvit_m0 efficientvim_m1 fastvit_t8 fasternet_t0 starnet_s050 swiftformer_xs shvit_s1
    repvit_m1 repghostnet_050 tiny_vit_5m_224 vitamin_small_224 mambaout_femto inception_next_atto iformer_t
    lowformer_b0 cpubone_nano csatv2 cspnext_tiny cs3darknet_s darknet17 cspresnext50 convmixer_768_32
    densenet121 dla34 dpn48b eca_botnext26ts_256 eca_halonext26ts lambda_resnet26t resnext26ts hardcorenas_a
    hgnetv2_b0 hgnet_tiny hrnet_w18_small inception_v3 inception_v4 inception_resnet_v2 lcnetv2_small
    nextvit_small nf_regnet_b0 eca_nfnet_l0 nf_resnet26 rdnet_tiny res2net50_48w_2s resnest14d resnetv2_18
    resnetv2_50x1_bit rexnet_100 selecsls42 legacy_seresnet18 skresnet18 tresnet_m ese_vovnet19b_slim xception41
    legacy_xception vgg11 beit_base_patch16_224 sequencer2d_s naflexvit_base_patch16_gap mobilenetv5_base
    nasnetalarge pnasnet5large
""".split()
# Networks whose attention PyTorch's newer exporter cannot export as one operation.
UNFUSED = ("huggingface/beit", "huggingface/data2vec-vision", "huggingface/swin", "timm/beit_base_patch16_224",
           "timm/hiera_tiny_224", "timm/maxvit_pico_rw_256", "timm/nest_tiny", "timm/twins_svt_small",
           "timm/vit_relpos_small_patch16_224")
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
        self.up2, self.join2 = nn.ConvTranspose2d(64, 32, 2, 2, bias=False), convolution(64, 32)
        self.up1, self.join1 = nn.ConvTranspose2d(32, 16, 2, 2, bias=False), convolution(32, 16)
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


_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 64,
          "patch_size": 16}
_STAGES = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_PYRAMID = {"num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "sr_ratios": [8, 4, 2, 1], "hidden_sizes": [16, 32, 48, 64],
            "num_attention_heads": [1, 2, 3, 4], "mlp_ratios": [2, 2, 2, 2]}
_CONVOLUTIONS = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 2, 1]}
# Options of the configurations of transformers' image classifiers, by their model types.
HUGGING_FACE = {
    "beit": {**_PLAIN, "use_relative_position_bias": True},
    "bit": {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [1, 2]},
    "clip": {"vision_config": _PLAIN, "text_config": {"hidden_size": 32, "num_hidden_layers": 1}},
    "convnext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 64},
    "convnextv2": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 64},
    "cvt": {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3], "drop_path_rate": [0.0, 0.0, 0.0]},
    "data2vec-vision": {**_PLAIN, "use_relative_position_bias": True},
    "deit": _PLAIN,
    "dinov2": {**_PLAIN, "mlp_ratio": 2},
    "dinov2_with_registers": {**_PLAIN, "mlp_ratio": 2},
    "donut-swin": _STAGES,
    "efficientnet": {"width_coefficient": 0.5, "depth_coefficient": 0.5, "image_size": 64, "hidden_dim": 640},
    "focalnet": {"image_size": 64, "embed_dim": 16, "depths": [1, 2], "focal_levels": [2, 2], "focal_windows": [3, 3],
                 "hidden_sizes": [16, 32]},
    "hgnet_v2": {"stem_channels": [3, 8, 16], "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1] * 4,
                 "stage_in_channels": [16, 16, 32, 64], "stage_mid_channels": [8, 16, 16, 32],
                 "stage_out_channels": [16, 32, 64, 128], "stage_num_blocks": [1] * 4},
    "hiera": {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 2], "num_heads": [1, 2, 4],
              "masked_unit_size": [4, 4], "num_query_pool": 2},
    "ijepa": _PLAIN,
    "levit": {"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [1, 2, 3], "depths": [1, 1, 1],
              "key_dim": [8, 8, 8]},
    "metaclip_2": {"vision_config": _PLAIN, "text_config": {"hidden_size": 32, "num_hidden_layers": 1}},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.35, "image_size": 64},
    "mobilevit": {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 24, 32, 48, 64]},
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25},
    "poolformer": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]},
    "pp_lcnet": {"scale": 0.25, "class_expand": 64},
    "pvt": {**_PYRAMID, "image_size": 64},
    "pvt_v2": {**_PYRAMID, "image_size": 64},
    "regnet": {**_CONVOLUTIONS, "groups_width": 8, "hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]},
    "resnet": {**_CONVOLUTIONS, "layer_type": "basic"},
    "segformer": _PYRAMID,
    "siglip": {"vision_config": _PLAIN, "text_config": {"hidden_size": 32, "num_hidden_layers": 1}},
    "swiftformer": {"image_size": 64, "embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "swin": _STAGES,
    "swinv2": _STAGES,
    "textnet": {},
    "timm_wrapper": {"architecture": "resnet18"},
    "vit": _PLAIN,
    "vit_msn": _PLAIN,
}


class Logits(nn.Module):
    """A model of transformers, without the other fields of its output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)[0]


def hugging_face(kind, classes):
    import transformers
    options = {key: value.copy() if isinstance(value, dict) else value for key, value in HUGGING_FACE[kind].items()}
    config = transformers.AutoConfig.for_model(kind, num_labels=classes, **options)
    if f"huggingface/{kind}" in UNFUSED:
        config._attn_implementation = "eager"
    known = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    return Logits((known[0] if isinstance(known, tuple) else known)(config))


def names(collection):
    if collection == "torchvision":
        return [name for name in torchvision.models.list_models(module=torchvision.models) if name not in TOO_LARGE]
    if collection == "families":
        return [f"timm/{name}" for name in FAMILIES]
    return [f"{collection}/{name}" for name in {"timm": TIMM, "huggingface": HUGGING_FACE, "own": OWN}[collection]]


def sizes(name):
    """Pixels of a side, and images: cheap ones, but over 60 values for each statistic of batch norm, or almost."""
    if name.startswith(("alexnet", "maxvit")) or name.endswith("_224"):
        return 224, 4
    if name.startswith("vgg"):
        return 224, 2  # the older exporter has no adaptive pooling to more pixels than there are
    if name == "inception_v3":
        return 107, 16
    if name.startswith("timm/") and name.removeprefix("timm/") not in TIMM:
        return timm.get_pretrained_cfg(name.removeprefix("timm/")).input_size[-1], 2
    if name.startswith(("convnext", "huggingface/", "own/", "squeezenet", "swin", "vit_")):
        return 64, 4
    return 34, 16  # sides of 17, 9, 5, 3, and 2 pixels


def create(name, classes):
    if name.startswith("own/"):
        return OWN[name.removeprefix("own/")](classes)
    if name.startswith("huggingface/"):
        return hugging_face(name.removeprefix("huggingface/"), classes)
    if name.startswith("timm/"):
        timm.layers.set_fused_attn(name not in UNFUSED)
        return timm.create_model(name.removeprefix("timm/"), num_classes=classes)
    options = {"image_size": sizes(name)[0]} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **options)


def build(name, classes):
    """A network with random weights, always the same ones, without dropout and stochastic depth.

    A gradient jumps if a ReLU's input changes its sign, and among millions of inputs some are as close to zero as float32
    resolve. Batch norms get a shift by which a hundredth of their outputs are below zero, so that few are close to it;
    not those of our small networks.
    """
    torch.manual_seed(1)
    model = create(name, classes)
    if any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in model.modules()):
        size = sizes(name)[0]
        model(torch.zeros(1, 3, size, size))
    shift = not name.startswith("own/") and not any(
        isinstance(module, nn.Hardswish) for module in model.modules())  # which is not smooth at 3
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and shift:
            nn.init.uniform_(module.bias, 2, 3)
        elif isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
        for probability in ("dropout", "attention_dropout", "drop_prob", "drop_rate"):
            if isinstance(getattr(module, probability, None), float):
                setattr(module, probability, 0.0)
    return model
