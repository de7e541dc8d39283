"""Fusion of operators into primitive functions, for programs that look at the groups. The host does not need it."""

from __future__ import annotations

from ._core import Call, Constant, Expr, Function, If, Let, Match, Op, TensorType, Tuple, TupleGetItem

ELEMWISE, BROADCAST, INJECTIVE, REDUCE, OUT_ELEMWISE, TUPLE, OPAQUE = 0, 1, 2, 3, 4, 7, 8


def _pattern(expr: Expr) -> int:
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        return expr.op.get_attr("TOpPattern")
    if isinstance(expr, Tuple):
        return TUPLE
    if isinstance(expr, TupleGetItem):
        return INJECTIVE
    is_scalar = isinstance(expr, Constant) and expr.checked_type == TensorType((), expr.checked_type.dtype)
    return ELEMWISE if is_scalar else OPAQUE


def _operands(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call):
        return list(expr.args) if isinstance(expr.op, Op) else [expr.op, *expr.args]
    if isinstance(expr, Tuple):
        return list(expr.fields)
    return [expr.tuple_value] if isinstance(expr, TupleGetItem) else []


class _Fuser:
    """Groups of the operators of a function, as sets of numbers of expressions."""

    def __init__(self, body: Expr) -> None:
        inner = {e for call in body.post_order() if isinstance(call, Call) and isinstance(call.op, Function)
                 for e in call.op.post_order()}  # fmt: skip
        self.order = [e for e in body.post_order() if e not in inner]
        self.number = {expr: i for i, expr in enumerate(self.order)}
        self.pattern = [_pattern(expr) for expr in self.order]
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.order]
        for i, expr in enumerate(self.order):
            for operand in _operands(expr):
                if operand in self.number:
                    self.users[self.number[operand]].append((i, self._edge(operand, expr, self.pattern[i])))
        self.parent = list(range(len(self.order)))
        self.group_pattern = list(self.pattern)
        self.dominator: list[tuple[int, int] | None] = [None] * len(self.order)
        self.depth = [1] * len(self.order)
        for i in reversed(range(len(self.order) - 1)):
            self._dominate(i)

    def _edge(self, operand: Expr, user: Expr, pattern: int) -> int:
        is_same = isinstance(operand.known_type, TensorType) and operand.known_type == user.known_type
        return ELEMWISE if pattern == BROADCAST and is_same else pattern

    def _dominate(self, i: int) -> None:
        """Finds the expression through which all uses go, and the most general pattern on the way."""
        if not self.users[i]:
            return
        common, pattern = self.users[i][0]
        for user, edge in self.users[i][1:]:
            pattern = max(pattern, edge)
            other = user
            while common != other:
                deeper = common if self.depth[common] >= self.depth[other] else other
                above = self.dominator[deeper]
                if above is None:
                    return
                pattern = max(pattern, above[1])
                common, other = (above[0], other) if deeper == common else (common, above[0])
        self.dominator[i] = common, pattern
        self.depth[i] = self.depth[common] + 1

    def root(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def _between(self, source: int, sink: int) -> list[int]:
        found, stack = {sink}, [user for user, _ in self.users[source]]
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack.extend(user for user, _ in self.users[i])
        return sorted(found)

    def _fuse(self, source: int, sink: int, inside: int, at_sink: tuple[int, ...] | None = None) -> None:
        path = self._between(source, sink)
        for i in path:
            kind = self.group_pattern[self.root(i)]
            is_allowed = kind in at_sink if at_sink is not None and i == sink else kind <= inside
            if not is_allowed:
                return
        target = self.root(sink)
        for i in [source, *path]:
            child = self.root(i)
            if child != target:
                if self.group_pattern[child] == OUT_ELEMWISE:
                    self.group_pattern[target] = max(self.group_pattern[target], OUT_ELEMWISE)
                self.parent[child] = target

    def run(self) -> None:
        for phase in (0, 1, 2):
            for i in range(len(self.order)):
                self._visit(i, phase)

    def _visit(self, i: int, phase: int) -> None:
        pattern, dominator = self.group_pattern[i], self.dominator[i]
        if pattern == OPAQUE or dominator is None:
            return
        sink, way = dominator
        if phase == 2:
            kind = self.group_pattern[self.root(sink)]
            if pattern <= INJECTIVE and self.pattern[sink] == TUPLE and kind <= INJECTIVE:
                self._fuse(i, self.root(sink), INJECTIVE, (ELEMWISE, BROADCAST, INJECTIVE, TUPLE))
            return
        if self.root(i) == self.root(sink) or self.pattern[sink] == TUPLE:
            return
        if pattern == OUT_ELEMWISE:
            if phase == 0 and way == ELEMWISE:
                self._fuse(i, sink, BROADCAST)
        elif pattern <= BROADCAST:
            if way <= REDUCE:
                self._fuse(i, sink, INJECTIVE, (ELEMWISE, BROADCAST, INJECTIVE, REDUCE, OUT_ELEMWISE))
        elif pattern in (INJECTIVE, TUPLE) and phase == 1:
            self._fuse(i, sink, INJECTIVE)

    def rebuild(self) -> Expr:
        outer: dict[Expr, Expr] = {}
        inner: dict[int, dict[Expr, Expr]] = {}
        params: dict[int, list[tuple[Expr, Expr]]] = {}
        members: dict[int, int] = {}
        for i in range(len(self.order)):
            members[self.root(i)] = max(i, members.get(self.root(i), 0))
        computing = {self.root(i) for i, expr in enumerate(self.order) if _is_op(expr)}
        for i, expr in enumerate(self.order):
            group = self.root(i)
            if not _operands(expr) or self.pattern[i] == OPAQUE and not _is_op(expr):
                changed = [(e, outer[e]) for e in _operands(expr) if e in outer and outer[e] != e]
                outer[expr] = expr.substitute(changed) if changed else expr
                inner.setdefault(group, {})[expr] = expr
                continue
            is_plain = group not in computing
            own = inner.setdefault(group, {})
            if is_plain:
                own[expr] = outer[expr] = _with(expr, {e: outer[e] for e in _operands(expr)})
                continue
            changed = {}
            for operand in _operands(expr):
                is_inside = self.root(self.number[operand]) == group
                pairs = params.setdefault(group, [])
                changed[operand] = own[operand] if is_inside else self._param(pairs, outer[operand])
            own[expr] = _with(expr, changed)
            if members[group] == i:
                pairs = params.get(group, [])
                function = Function([param for _, param in pairs], own[expr], None, None, {"Primitive": 1})
                outer[expr] = Call(function, [value for value, _ in pairs])
        return outer[self.order[-1]]

    def _param(self, pairs: list[tuple[Expr, Expr]], value: Expr) -> Expr:
        from ._core import Var

        for held, param in pairs:
            if held == value:
                return param
        param = Var(f"p{len(pairs)}", value.known_type)
        pairs.append((value, param))
        return param


def _is_op(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op)


def _with(expr: Expr, operands: dict[Expr, Expr]) -> Expr:
    if isinstance(expr, Call):
        op = expr.op if isinstance(expr.op, Op) else operands.get(expr.op, expr.op)
        return Call(op, [operands[arg] for arg in expr.args], expr.attrs)
    if isinstance(expr, Tuple):
        return Tuple([operands[field] for field in expr.fields])
    return TupleGetItem(operands[expr.tuple_value], expr.index)


def fuse(function: Function, opt_level: int) -> Function:
    """Returns the function with its operators in primitive functions. One with branches or lets is left as it is."""
    if any(isinstance(expr, (Let, If, Match)) for expr in function.body.post_order()):
        return function
    fuser = _Fuser(function.body)
    if opt_level > 0:
        fuser.run()
    return Function(function.params, fuser.rebuild(), function.ret_type, function.type_params, function.attrs)
