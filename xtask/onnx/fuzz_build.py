"""Construction of one node: choice of element types, existing values and new values."""

import numpy as np
import onnx

from fuzz_graph import BF16, BOOL, BY_NAME, F32, FLOATS, Node, Refused, Value

DIMS = [1, 1, 2, 2, 3, 3, 4, 5, 6, 7]
LARGE_DIMS = [1, 3, 8, 9, 16, 17]
MAX_ELEMENTS = 40_000


class Builder:
    """Builder of one node. Inputs are identified by their index in the schema, which specifies the permitted element types."""

    def __init__(self, graph, op, rng, style):
        self.graph, self.op, self.rng, self.style = graph, op, rng, style
        self.opset = graph.opset
        self.schema = onnx.defs.get_schema(op, self.opset, "")
        self.since = self.schema.since_version
        self.types = {}
        self.fresh = {}

    # Random choices.

    def some(self, share):
        return self.rng.random() < share

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def int(self, low, high):
        """Returns an integer in low..=high."""
        return int(self.rng.integers(low, high + 1))

    def dim(self):
        if self.style.zeros and self.some(0.1):
            return 0
        return int(self.pick(LARGE_DIMS if self.style.large else DIMS))

    def dims(self, low, high=None):
        """Returns a shape of a rank in low..=high."""
        shape = [self.dim() for _ in range(self.int(low, low if high is None else high))]
        while np.prod(shape) > MAX_ELEMENTS:
            shape[int(np.argmax(shape))] //= 2
        return shape

    # Element types.

    def formal(self, i):
        """Returns the i-th formal input; the last one may be variadic."""
        return self.schema.inputs[min(i, len(self.schema.inputs) - 1)]

    def allowed(self, i, of=None):
        name = self.formal(i).type_str
        if name in self.types:
            return [self.types[name]]
        constraints = [c.allowed_type_strs for c in self.schema.type_constraints if c.type_param_str == name]
        names = constraints[0] if constraints else [name]
        kinds = [BY_NAME[n] for n in names if n in BY_NAME]
        return [kind for kind in kinds if of is None or kind in of]

    def dtype(self, i, of=None):
        """Binds the element type of a formal input: often the graph's main type, otherwise any permitted type."""
        kinds = self.allowed(i, of)
        if not kinds:
            raise Refused(f"{self.op}: no permitted element type")
        main = self.style.main
        kind = main if main in kinds and self.some(0.6) else self.pick(kinds)
        if kind in FLOATS and kind != main and not self.some(0.3):
            kind = main if main in kinds else F32 if F32 in kinds else kind
        return self.bind(i, kind)

    def bind(self, i, kind):
        self.types.setdefault(self.formal(i).type_str, kind)
        return kind

    # Values.

    def value(self, name):
        return self.fresh.get(name) or self.graph.values[name]

    def array(self, name):
        return self.value(name).array

    def shape(self, name):
        return list(self.array(name).shape)

    def rank(self, name):
        return self.array(name).ndim

    def name(self):
        self.graph.names += 1
        return f"v{self.graph.names}"

    def add(self, array, constant=0.5):
        """Adds a value: a constant with the given probability, otherwise a run-time input."""
        source = "input"
        if self.some(constant):
            source = "node" if self.some(0.15) else "constant"
        name = self.name()
        array = np.asarray(array)
        self.fresh[name] = Value(name, array, array, True, source)
        return name

    def random(self, kind, shape, low=None, high=None):
        """Returns random elements in low..=high, by default in a range that suits the type."""
        rng = self.rng
        if kind == BOOL:
            return rng.integers(0, 2, shape).astype(BOOL)
        if kind in FLOATS:
            wild = low is None and not self.graph.finite
            if low is None:
                low, high = self.pick([(-1, 1), (-3, 3), (-10, 10)])
            array = rng.uniform(low, high, shape)
            if self.some(0.3):
                array = np.clip(np.round(array * 4) / 4, low, high)
            if wild and self.some(0.4) and array.size:
                places = rng.integers(0, array.size, max(1, array.size // 6))
                array = np.array(array)
                array.flat[places] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], len(places))
            return np.asarray(array).astype(F32).astype(kind)
        info = np.iinfo(kind)
        if low is None:
            low, high = (info.min, info.max) if self.some(0.08) else (-9, 9)
        low, high = max(low, info.min), min(high, info.max)
        return rng.integers(low, high, shape, dtype=kind, endpoint=True)

    def new(self, i, shape, low=None, high=None, constant=0.3, of=None):
        """Adds a new value for the i-th formal input."""
        kind = self.dtype(i, of)
        return self.add(self.random(kind, list(shape), low, high), constant)

    def old(self, i, accepts, of=None, fresh=0.25):
        """Returns an existing value for the i-th formal input, or None; recent values are preferred."""
        if self.some(fresh):
            return None
        kinds = self.allowed(i, of)
        values = self.graph.values.values()
        found = [v.name for v in values if v.array.dtype in kinds and v.source != "constant" and accepts(v.array)]
        if not found:
            return None
        name = found[-1 - min(int(self.rng.exponential(len(found) / 3)), len(found) - 1)]
        self.bind(i, self.array(name).dtype)
        return name

    def any(self, i, low=0, high=5, of=None, accepts=None, fresh=0.25, **values):
        """Returns a value of a rank in low..=high for the i-th formal input."""
        fits = lambda a: low <= a.ndim <= high and (accepts is None or accepts(a))
        found = self.old(i, fits, of, fresh)
        if found:
            return found
        if low <= 2 <= high and self.some(0.6):
            high = min(high, 4)
            low = max(low, 1)
        return self.new(i, self.dims(low, high), of=of, **values)

    def within(self, i, low, high, ranks=(0, 5)):
        """Returns a value with elements in low..=high."""

        def fits(a):
            return ranks[0] <= a.ndim <= ranks[1] and bool(((a >= low) & (a <= high)).all())

        return self.old(i, fits) or self.new(i, self.dims(max(ranks[0], 1), min(ranks[1], 4)), low, high)

    def like(self, i, shape, low=None, high=None, constant=0.4):
        """Returns a value of the given shape for the i-th formal input."""
        shape = tuple(shape)
        found = None if low is not None else self.old(i, lambda a: a.shape == shape, fresh=0.4)
        return found or self.new(i, shape, low, high, constant)

    def ints(self, i, numbers, constant=0.65):
        """Returns a value with the given integers for the i-th formal input."""
        kind = self.dtype(i)
        return self.add(np.array(numbers, dtype=kind), constant)

    def broadcast(self, shape):
        """Returns a shape that broadcasts with, or to, the given shape."""
        shape = list(shape)
        if self.some(0.4):
            return shape
        shape = [1 if self.some(0.35) else d for d in shape]
        return shape[self.int(0, len(shape)) :] if self.some(0.4) else shape

    def grown(self, shape):
        """Returns a shape that broadcasts with the given shape: sometimes of higher rank, and larger where a dimension is 1."""
        result = self.broadcast(shape)
        for i in range(1, len(result) + 1):
            if shape[-i] == 1 and self.some(0.4):
                result[-i] = self.dim()
        return [self.dim()] + result if len(result) == len(shape) < 4 and self.some(0.1) else result

    def axis(self, rank, negative=True):
        axis = self.int(0, rank - 1)
        return axis - rank if negative and self.some(0.4) else axis

    def axes(self, rank, low=1, negative=True):
        """Returns distinct axes in random order."""
        count = self.int(low, rank)
        axes = [int(a) for a in self.rng.permutation(rank)[:count]]
        if self.some(0.6):
            axes.sort()
        return [a - rank if negative and self.some(0.3) else a for a in axes]

    def done(self, inputs, outputs=1, captures=(), **attrs):
        """Returns the node, without attributes that are None and trailing inputs that are None or empty."""
        inputs = [name or "" for name in inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        known = {key: value for key, value in attrs.items() if value is not None}
        names = outputs if isinstance(outputs, list) else [self.name() for _ in range(outputs)]
        return Node(self.op, inputs, names, known, list(captures))

    def maybe(self, make, share=0.5):
        """Returns the result of a function with the given probability, otherwise None."""
        return make() if self.some(share) else None
