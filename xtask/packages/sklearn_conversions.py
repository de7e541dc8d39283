"""Converts every kind of scikit-learn model that skl2onnx supports, and compares byoc with ONNX Runtime:
sklearn_conversions.py [NAME..]

A conversion counts if scikit-learn fits the model with its default parameters on the data below, skl2onnx converts it,
and ONNX Runtime runs the result. byoc gives the same results: labels and strings exactly, other numbers within a
relative difference of 1e-4. sklearn_known.txt lists the conversions that fail, with reasons. The exit code is 1 if
another one fails, or if one of them passes.
"""

import pathlib
import sys
import warnings

import numpy as np
import onnxruntime
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import (
    compose,
    datasets,
    ensemble,
    feature_extraction,
    impute,
    linear_model,
    naive_bayes,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from sklearn.utils import all_estimators

import byoc.onnxruntime

KNOWN = pathlib.Path(__file__).with_name("sklearn_known.txt")
LIMIT = 1e-4

X, LABELS = datasets.load_iris(return_X_y=True)
X = X.astype(np.float32)
WORDS = np.array(["setosa", "versicolor", "virginica"])[LABELS]
VALUES = (X @ [0.3, -1, 2, 0.5] + 1).astype(np.float32)
TEXTS = np.array([f"{one} flower, the {index % 7} of {index % 3}: red-ish" for index, one in enumerate(WORDS)])
GAPS = X.copy()
GAPS[::5, 1] = GAPS[1::7, 3] = np.nan
COUNTS = np.abs(X * 2).round().astype(np.float32)
BITS = np.greater(X, X.mean(axis=0)).astype(np.float32)
DATA = {
    "KNNImputer": GAPS, "SimpleImputer": GAPS, "CategoricalNB": BITS, "OneHotEncoder": BITS, "OrdinalEncoder": BITS,
    "ComplementNB": COUNTS, "MultinomialNB": COUNTS, "BernoulliNB": BITS,
}  # fmt: skip

# Parameters, where the defaults need others or take long.
PARAMETERS = {
    "Birch": {"n_clusters": 3}, "GaussianRandomProjection": {"n_components": 3},
    "SparseRandomProjection": {"n_components": 3}, "FeatureHasher": {"n_features": 8, "input_type": "string"},
    "KernelPCA": {"n_components": 3}, "MLPClassifier": {"max_iter": 50},
    "MLPRegressor": {"max_iter": 50}, "SelectKBest": {"k": 2}, "TruncatedSVD": {"n_components": 2},
    "RFE": {"estimator": linear_model.LogisticRegression()}, "RFECV": {"estimator": linear_model.LogisticRegression()},
    "SelectFromModel": {"estimator": tree.DecisionTreeClassifier()}, "KNeighborsTransformer": {"n_neighbors": 3},
    "CalibratedClassifierCV": {"estimator": naive_bayes.GaussianNB()}, "NMF": {"n_components": 2},
    "OneVsRestClassifier": {"estimator": linear_model.LogisticRegression()},
    "OneVsOneClassifier": {"estimator": linear_model.LogisticRegression()},
    "OutputCodeClassifier": {"estimator": linear_model.LogisticRegression()},
    "MultiOutputClassifier": {"estimator": linear_model.LogisticRegression()},
    "MultiOutputRegressor": {"estimator": linear_model.LinearRegression()},
    "RANSACRegressor": {"estimator": linear_model.LinearRegression()},
    "TransformedTargetRegressor": {},
    "ColumnTransformer": {"transformers": [("s", preprocessing.StandardScaler(), [0, 1])]},
    "FeatureUnion": {"transformer_list": [("s", preprocessing.StandardScaler()), ("m", preprocessing.MinMaxScaler())]},
    "Pipeline": {"steps": [("s", preprocessing.StandardScaler()), ("l", linear_model.LogisticRegression())]},
    "VotingClassifier": {"estimators": [("a", linear_model.LogisticRegression()), ("b", naive_bayes.GaussianNB())]},
    "VotingRegressor": {"estimators": [("a", linear_model.LinearRegression()), ("b", tree.DecisionTreeRegressor())]},
    "StackingClassifier": {"estimators": [("a", linear_model.LogisticRegression()), ("b", naive_bayes.GaussianNB())]},
    "StackingRegressor": {"estimators": [("a", linear_model.LinearRegression()), ("b", tree.DecisionTreeRegressor())]},
}  # fmt: skip


def cases():
    """Yields a name, a fitted model, its inputs for the conversion, and its feeds."""
    estimators = dict(all_estimators())
    names = {cls.__name__ for cls in sklearn_operator_name_map if cls.__module__.startswith("sklearn.")}
    extra = {"Pipeline": pipeline.Pipeline, "ColumnTransformer": compose.ColumnTransformer,
             "FeatureUnion": pipeline.FeatureUnion}  # fmt: skip
    for name in sorted(names | set(extra)):
        cls = estimators.get(name) or extra.get(name)
        if cls is not None:
            yield name, lambda cls=cls, name=name: numeric(cls(**PARAMETERS.get(name, {})), name)
    yield "SVC with probabilities", lambda: numeric(svm.SVC(probability=True), "SVC")
    yield "SVC of two classes with probabilities", lambda: numeric(svm.SVC(probability=True), "SVC", LABELS > 0)
    yield "NuSVC with probabilities", lambda: numeric(svm.NuSVC(probability=True), "NuSVC")
    yield "SVC with words", lambda: numeric(svm.SVC(probability=True, kernel="poly"), "SVC", WORDS)
    yield "LogisticRegression with words", lambda: numeric(linear_model.LogisticRegression(), "", WORDS)
    yield "RandomForestClassifier with words", lambda: numeric(ensemble.RandomForestClassifier(8), "", WORDS)
    yield "KNNImputer with two neighbors", lambda: numeric(impute.KNNImputer(n_neighbors=2), "KNNImputer")
    yield "LabelEncoder with words", lambda: words(preprocessing.LabelEncoder(), WORDS)
    yield "OneHotEncoder with words", lambda: words(preprocessing.OneHotEncoder(), WORDS[:, None])
    yield "OrdinalEncoder with words", lambda: words(preprocessing.OrdinalEncoder(), WORDS[:, None])
    yield "LabelBinarizer with words", lambda: words(preprocessing.LabelBinarizer(), WORDS)
    for kind in ("word", "char"):
        yield f"CountVectorizer of {kind}s", lambda kind=kind: words(
            feature_extraction.text.CountVectorizer(analyzer=kind, ngram_range=(1, 2)), TEXTS)  # fmt: skip
        yield f"TfidfVectorizer of {kind}s", lambda kind=kind: words(
            feature_extraction.text.TfidfVectorizer(analyzer=kind), TEXTS)  # fmt: skip
    yield "TfidfVectorizer and LogisticRegression", lambda: words(
        pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression()), TEXTS,
        LABELS)  # fmt: skip


def numeric(model, name, labels=LABELS):
    if name in ("LabelEncoder", "LabelBinarizer"):
        model.fit(labels)
        shape = [None, 1] if name == "LabelBinarizer" else [None]
        return model, [("x", Int64TensorType(shape))], labels.astype(np.int64).reshape([-1, 1][: len(shape)])
    if name == "MultiLabelBinarizer":
        raise NotImplementedError
    data = DATA.get(name, X)
    if getattr(model, "_estimator_type", None) == "regressor" or name.endswith(("Regressor", "Regression")):
        labels = VALUES if name not in ("LogisticRegression",) else labels
    if name.startswith("MultiTask") or name in ("MultiOutputRegressor", "PLSRegression", "CCA", "PLSCanonical"):
        labels = np.stack([VALUES, VALUES * 2 + data[:, 0]], axis=1)
    if name == "MultiOutputClassifier":
        labels = np.stack([LABELS, LABELS > 0], axis=1).astype(np.int64)
    if name in ("GammaRegressor", "PoissonRegressor", "TweedieRegressor"):
        labels = np.abs(VALUES) + 1
    model.fit(data, labels)
    # On the data of the fit, the decisions of this one are zero but for rounding.
    feeds = data + np.float32(0.02) if name == "OneClassSVM" else data
    return model, [("x", FloatTensorType([None, data.shape[1]]))], feeds


def words(model, data, labels=None):
    if labels is None:
        model.fit(data)
    else:
        model.fit(data, labels)
    shaped = data.reshape(-1, 1)
    kind = [None] if isinstance(model, (preprocessing.LabelEncoder, preprocessing.LabelBinarizer)) else [None, 1]
    feeds = data if len(kind) == 1 else shaped
    return model, [("x", StringTensorType(kind))], feeds.astype(object)


def options(model):
    """Returns options of the conversion: texts are in no locale that this machine may lack."""
    steps = [step for _, step in model.steps] if isinstance(model, pipeline.Pipeline) else [model]
    texts = (feature_extraction.text.CountVectorizer, feature_extraction.text.TfidfVectorizer)
    return {id(step): {"locale": "C"} for step in steps if isinstance(step, texts)} or None


def run(ort, data, feeds):
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": feeds})


def difference(found, expected, place="result"):
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        if [list(row) for row in found] != [list(row) for row in expected]:
            return f"{place}: other keys"
        found, expected = (np.array([list(row.values()) for row in rows]) for rows in (found, expected))
    if isinstance(expected, list):
        pairs = zip(found, expected)
        return next((text for index, pair in enumerate(pairs) if (text := difference(*pair, f"{place} {index}"))), None)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{place}: {found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if expected.dtype.kind != "f":
        return None if (found == expected).all() else f"{place}: {(found != expected).mean():.1%} of the elements"
    scale = np.abs(np.nan_to_num(expected)).max(initial=0) or 1
    worst = np.abs(np.nan_to_num(found) - np.nan_to_num(expected)).max(initial=0) / scale
    return None if worst <= LIMIT and (np.isnan(found) == np.isnan(expected)).all() else f"{place}: {worst:.1e}"


def main():
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    lines = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    known = dict(line.split(": ", 1) for line in lines if line)
    passed, failed, skipped = [], {}, {}
    for name, make in cases():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        try:
            np.random.seed(0)
            model, types, feeds = make()
            try:
                data = convert_sklearn(model, initial_types=types, options=options(model)).SerializeToString()
            except Exception:
                data = to_onnx(model, feeds[:1]).SerializeToString()
            expected = run(onnxruntime, data, feeds)
        except Exception as error:
            skipped[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            continue
        try:
            text = difference(run(byoc.onnxruntime, data, feeds), expected)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:300]}"
        if text is None:
            passed.append(name)
        else:
            failed[name] = text
    print(f"{len(passed)} of {len(passed) + len(failed)} conversions pass")
    for name, text in failed.items():
        print(f"{name} fails: {known.get(name, text)}")
    for name, text in skipped.items():
        print(f"{name} does not count: {text}")
    unexpected = [name for name in failed if name not in known] + [name for name in passed if name in known]
    for name in unexpected:
        print(f"unexpected: {name} {failed.get(name, 'passes')}")
    sys.exit(1 if unexpected else 0)


main()
