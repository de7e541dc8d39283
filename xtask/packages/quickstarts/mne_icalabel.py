# packages: mne-icalabel==0.10.0 mne scikit-learn
import numpy as np
from mne_icalabel.iclabel.network.onnx import _run_iclabel

random = np.random.default_rng(0)
images = random.standard_normal((32, 32, 1, 8)).astype(np.float32)
spectra = random.standard_normal((1, 100, 1, 8)).astype(np.float32)
correlations = random.standard_normal((1, 100, 1, 8)).astype(np.float32)


def call():
    return _run_iclabel(images, spectra, correlations)
