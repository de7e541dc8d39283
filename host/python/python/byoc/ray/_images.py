"""Image classification with `byoc.ray`."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import ModelError
from .._model import Model, Port
from .._session import default_session
from ._artifact import Artifact, load_model, put
from ._predictor import Batch, Predictor, top
from ._require import require

EXTENSIONS = ("png", "jpg", "jpeg", "bmp", "gif", "webp")


class Format(NamedTuple):
    """Image format that a model expects."""

    channels_last: bool
    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, port: Port, size: tuple[int, int] | None = None) -> Format:
        """Returns the format of an input: NCHW or NHWC with 1 or 3 channels. `size` replaces open dimensions."""
        dims = port.shape
        if len(dims) == 4 and port.dtype in ("float32", "float16", "float64", "uint8"):
            for channels_last, channels, sizes in ((False, dims[1], dims[2:]), (True, dims[3], dims[1:3])):
                if channels not in (1, 3):
                    continue
                found = [own if isinstance(own, int) else given for own, given in zip(sizes, size or (None, None))]
                if None in found:
                    message = f'input "{port.name}": expected a height and a width, found {list(dims)}'
                    raise ModelError(message, "E0605", "pass size=(HEIGHT, WIDTH)")
                return cls(channels_last, channels, *found)  # type: ignore[arg-type]
        message = f'input "{port.name}": expected images with 1 or 3 channels, found {port.dtype}{list(dims)}'
        raise ModelError(message, "E0605", "use byoc.ray.Predictor with preprocess=")


def picture_format(model: Model, size: tuple[int, int] | None) -> Format:
    """Returns the format of the only input of a model."""
    if len(model.inputs) != 1:
        raise ModelError(f"expected a model with one input, found {len(model.inputs)}", "E0603")
    return Format.of(model.inputs[0], size)


class Classifier(Predictor):
    """Callable class for `map_batches` over files: reads the columns "path" and "bytes", and returns "path" with:

    label: name of the class with the largest output, or its index if there are no labels.
    score: output of that class.
    error: reason why a file could not be read as an image; empty otherwise.

    Images are scaled to the input size of the model. Floating-point elements are scaled to [0, 1] and normalized with
    `mean` and `std`.
    """

    def __init__(
        self,
        model: Any,
        *,
        labels: Sequence[str] | None = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        size: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        require("PIL.Image", "pip install pillow")
        self.format = picture_format(self.model, size)
        self.labels = None if labels is None else np.array([str(label) for label in labels], object)
        self.mean, self.std = mean, std

    def __call__(self, batch: Batch) -> Batch:
        """Classifies the files of a batch."""
        pictures, errors = [], []
        for data in batch["bytes"]:
            try:
                pictures.append(self.picture(data))
                errors.append("")
            except Exception as cause:
                errors.append(str(cause) or type(cause).__name__)
        count = len(errors)
        label, score = np.full(count, "", object), np.full(count, np.nan, np.float32)
        if pictures:
            name = self.model.inputs[0].name
            results = self.rows.run({name: np.stack(pictures)})
            index, best = top(next(iter(results.values())))
            good = [not error for error in errors]
            score[good] = best
            label[good] = index.astype(str) if self.labels is None else self._named(index)
        return {"path": batch["path"], "label": label.astype(str), "score": score, "error": np.array(errors, str)}

    def picture(self, data: bytes) -> np.ndarray:
        """Decodes an image file to a row of the model's input."""
        from PIL import Image

        form, port = self.format, self.model.inputs[0]
        with Image.open(io.BytesIO(data)) as image:
            image = image.convert("L" if form.channels == 1 else "RGB")
            image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image).reshape(form.height, form.width, form.channels)
        if port.dtype != "uint8":
            pixels = pixels.astype(np.float32) / np.float32(255)
            if self.mean is not None:
                pixels = pixels - np.asarray(self.mean, np.float32)
            if self.std is not None:
                pixels = pixels / np.asarray(self.std, np.float32)
            pixels = pixels.astype(port.dtype)
        return pixels if form.channels_last else np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _named(self, index: np.ndarray) -> np.ndarray:
        if index.size and index.max() >= len(self.labels):
            message = f"number of labels: expected at least {index.max() + 1}, found {len(self.labels)}"
            raise ModelError(message, "E0614")
        return self.labels[index]


def classify_folder(
    folder: str | os.PathLike[str] | Sequence[str],
    model: Any,
    *,
    labels: Sequence[str] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    size: tuple[int, int] | None = None,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    batch_size: int = 8,
    readers: int | None = None,
    extensions: Sequence[str] = EXTENSIONS,
    classifier: type[Classifier] = Classifier,
    **options: Any,
) -> Any:
    """Classifies the images in a directory on the workers of a Ray cluster.

    Returns a Ray dataset with the columns "path", "label", "score" and "error", and one row per file. The dataset is
    evaluated lazily: `dataset.iter_rows()`, `dataset.write_csv(...)`. A failed worker is replaced, and its files are
    classified again.

    folder: path or URI that every node can read, or a list of them; selects the files with the given `extensions`.
    model: model that `byoc.ray.put` accepts, with its options, or its result; the model has one input of images.
    labels: class names.
    mean, std: mean and standard deviation that normalize the pixels in [0, 1], for all channels or per channel.
    size: image height and width, for models with open dimensions.
    workers: number of workers, or minimum and maximum; by default, from one to as many as the cluster can run.
    num_cpus: processors per worker, and number of threads.
    batch_size: number of images per batch.
    readers: maximum number of processes that read files; by default, the number of processors in the cluster. Remote
        storage may need more of them.
    classifier: subclass of Classifier.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected a number >= 1, found {batch_size}")
    if num_cpus <= 0:
        raise ValueError(f"num_cpus: expected a number > 0, found {num_cpus}")
    if readers is not None and readers < 1:
        raise ValueError(f"readers: expected a number >= 1, found {readers}")
    require("PIL.Image", "pip install pillow")
    data = require("ray.data")
    artifact = model if isinstance(model, Artifact) else _put_checked(model, size, options)
    pool = _pool(data, workers, num_cpus)
    paths = [os.fspath(folder)] if isinstance(folder, (str, os.PathLike)) else [os.fspath(one) for one in folder]
    # Reading files is I/O-bound and reserves no processors, because the workers may reserve all of them. Without a
    # limit, Ray starts a process for nearly every reading task, and they take processor time from the workers.
    files = data.read_binary_files(
        paths,
        include_paths=True,
        file_extensions=list(extensions),
        num_cpus=0,
        concurrency=_cluster_cpus() if readers is None else readers,
    )
    return files.map_batches(
        classifier,
        fn_constructor_args=(artifact,),
        fn_constructor_kwargs={"labels": labels, "mean": mean, "std": std, "size": size},
        batch_size=batch_size,
        batch_format="numpy",
        compute=pool,
        num_cpus=num_cpus,
    )


def _put_checked(model: Any, size: tuple[int, int] | None, options: dict[str, Any]) -> Artifact:
    """Puts a model into the object store, after checking the input format: errors in workers are harder to read."""
    require("ray")
    loaded = load_model(model, options.pop("session", None) or default_session(), options)
    picture_format(loaded, size)
    is_path = isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".byoc")
    return put(model if is_path else loaded)


def _pool(data: Any, workers: int | tuple[int, int] | None, num_cpus: float) -> Any:
    if workers is None:
        workers = (1, max(1, int(_cluster_cpus() / num_cpus)))
    if isinstance(workers, int):
        if workers < 1:
            raise ValueError(f"workers: expected a number >= 1, found {workers}")
        return data.ActorPoolStrategy(size=workers)
    least, most = workers
    if not 1 <= least <= most:
        raise ValueError(f"workers: expected two numbers >= 1 in ascending order, found {workers}")
    return data.ActorPoolStrategy(min_size=least, max_size=most)


def _cluster_cpus() -> int:
    return max(1, int(require().cluster_resources().get("CPU", 1)))
