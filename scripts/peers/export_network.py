"""Exports a network of torchvision with random weights, in training mode: export_network.py NAME FILE.onnx"""
import logging
import os
import sys
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
name, file = sys.argv[1:]
model = torchvision.models.get_model(name).train()
torch.onnx.export(model, (torch.randn(2, 3, 224, 224),), file + ".new", dynamo=False, opset_version=17,
                  do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING)
os.replace(file + ".new", file)
