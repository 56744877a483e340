"""Training of graph networks in PyTorch alone, made as fast as possible without a new kernel.

Sums over neighbours are cuSPARSE's products (MKL's on a CPU) with matrices that are made once, in both directions; a symmetric one serves
as its own transpose. Features are multiplied with the weights first if that makes them narrower. Attention is a product of the edges'
weights, not yet normalised, with the features and a column of ones, which yields the sum of the weights as well; its gradient takes one
product with the transpose and one number per edge. In 16 bits, the number of these columns is a multiple of 16. Attention by cosines is the
same with products per edge for the scores. Its gradient takes one more product with a matrix and one with its transpose, or a single one if
the pattern is symmetric.

Layers have the same parameters as those of :mod:`bitsparse.torch`, under the same names.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["KINDS", "Pattern", "layers", "operand", "version"]

KINDS = ("gcn", "sage", "gin", "gat", "agnn")
SLOPE = 0.2


def version() -> str:
    """The name of the peer in records."""
    return f"torch {torch.__version__}, products of cuSPARSE"


# ---- matrices
class Pattern:
    """A square pattern in both directions.

    Parameters
    ----------
    indptr, indices : Tensor
        CSR arrays without loops and with ascending columns.
    loops : bool
        Whether every node gets an edge to itself.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, loops: bool) -> None:
        nodes = self.nodes = indptr.numel() - 1
        counts = torch.diff(indptr.long())
        keys = torch.repeat_interleave(torch.arange(nodes, device=indptr.device), counts) * nodes + indices
        if loops:
            own = torch.arange(nodes, device=indptr.device) * (nodes + 1)
            keys = torch.cat([keys, own]).sort().values
        self.rows, self.columns = (keys // nodes).int(), (keys % nodes).int()
        del keys
        order = torch.argsort(self.columns.long() * nodes + self.rows)
        #: For each edge of the transpose, its number in the pattern.
        self.order = order.int()
        turned = self.rows[order]
        del order
        self.indptr, turned_indptr = _starts(self.rows, nodes), _starts(self.columns, nodes)
        self.symmetric = torch.equal(turned, self.columns) and torch.equal(turned_indptr, self.indptr)
        self._turned = (self.indptr, self.columns) if self.symmetric else (turned_indptr, turned)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first CSR tensor says that CSR is a beta feature
            self.matrix(torch.ones(self.columns.numel(), device=indptr.device))

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix of the pattern with these values."""
        shape = (self.nodes, self.nodes)
        made: Tensor = torch.sparse_csr_tensor(self.indptr, self.columns, values, shape, check_invariants=False)
        return made

    def turned(self, values: Tensor) -> Tensor:
        """The transpose, with the values in its own order."""
        shape = (self.nodes, self.nodes)
        made: Tensor = torch.sparse_csr_tensor(*self._turned, values, shape, check_invariants=False)
        return made


def _starts(numbers: Tensor, nodes: int) -> Tensor:
    ends = torch.cumsum(torch.bincount(numbers, minlength=nodes), 0)
    return torch.cat([ends.new_zeros(1), ends]).int()


class Matrices(NamedTuple):
    """A matrix and its transpose, with values."""

    matrix: Tensor
    turned: Tensor


def operand(kind: str, indptr: Tensor, indices: Tensor, dtype: torch.dtype) -> Any:
    """The operand of a network's sums: matrices with values, or for attention the pattern."""
    pattern = Pattern(indptr, indices, loops=kind != "sage")
    if kind in ("gat", "agnn"):
        return pattern
    degree = torch.diff(pattern.indptr).clamp(min=1).float()
    if kind == "sage":  # the mean
        inverse = (1 / degree).to(dtype)
        return Matrices(pattern.matrix(inverse[pattern.rows]), pattern.turned(inverse[pattern.rows[pattern.order]]))
    if kind == "gcn":
        root = degree.rsqrt()
        values = (root[pattern.rows] * root[pattern.columns]).to(dtype)
    else:  # gin: a node's own features are the diagonal
        values = torch.ones(pattern.columns.numel(), dtype=dtype, device=indptr.device)
    matrix = pattern.matrix(values)
    return Matrices(matrix, matrix if pattern.symmetric else pattern.turned(values[pattern.order]))


# ---- products with gradients
class Sum(torch.autograd.Function):
    """A product with a constant matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, turned: Tensor) -> Tensor:
        """``matrix @ x``."""
        ctx.turned = turned
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Multiply by the transpose."""
        return torch.sparse.mm(ctx.turned, gradient.contiguous()), None, None


class Attend(torch.autograd.Function):
    """Sums of `x` (nodes, heads, columns) weighted with the softmax of ``leaky_relu(source[j] + target[i])``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, pattern: Pattern) -> Tensor:
        """Compute the sums head by head."""
        source, target = (part.float().t().contiguous() for part in (source, target))
        # Upper bounds of each row's scores, so that no exponential overflows.
        bounds = nn.functional.leaky_relu(source.amax(1, keepdim=True) + target, SLOPE)
        columns, weights, sums, results = x.shape[2], [], [], []
        for head in range(x.shape[1]):
            scores = nn.functional.leaky_relu(_ends(pattern, source[head], target[head]), SLOPE)
            scores -= bounds[head].index_select(0, pattern.rows)
            weights.append(scores.exp_().to(x.dtype))
            product = torch.sparse.mm(pattern.matrix(weights[-1]), _beside(x[:, head], None))
            sums.append(product[:, columns : columns + 1].float().clamp(min=1e-30))
            results.append((product[:, :columns] / sums[-1]).to(x.dtype))
        out = torch.stack(results, 1)
        ctx.pattern = pattern
        ctx.save_for_backward(x, source, target, out, *weights, *sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiate the quotient, the product, the exponential and the leaky relu."""
        x, source, target, out, *parts = ctx.saved_tensors
        pattern, heads = ctx.pattern, x.shape[1]
        ones = torch.ones((pattern.nodes, 1), device=x.device)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for head, (weights, sums) in enumerate(zip(parts[:heads], parts[heads:], strict=True)):
            by_product = gradient[:, head] / sums
            by_sum = -(by_product * out[:, head]).sum(1, keepdim=True)
            turned = pattern.turned(weights.index_select(0, pattern.order))
            by_x = torch.sparse.mm(turned, by_product.to(x.dtype))
            ends = _beside(by_product.float(), by_sum.float()), _beside(x[:, head].float(), None)
            by_weights = _of_edges(pattern, *ends)
            scores = _ends(pattern, source[head], target[head])
            by_scores = by_weights * weights * torch.where(scores > 0, 1.0, SLOPE)
            by_target = torch.sparse.mm(pattern.matrix(by_scores), ones)
            by_source = torch.sparse.mm(pattern.turned(by_scores.index_select(0, pattern.order)), ones)
            found.append((by_x, by_source, by_target))
        by_x, by_source, by_target = zip(*found, strict=True)
        return torch.stack(by_x, 1), *(torch.cat(part, 1).to(x.dtype) for part in (by_source, by_target)), None


class AttendByCosine(torch.autograd.Function):
    """Sums of `x` (nodes, columns) weighted with the softmax of ``beta * cos(x[i], x[j])``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: Tensor, pattern: Pattern) -> Tensor:
        """Compute the sums; no score exceeds the magnitude of beta, so that no exponential overflows."""
        inverse = 1 / x.float().norm(dim=1, keepdim=True).clamp(min=1e-12)
        unit = x.float() * inverse
        cosines = _of_edges(pattern, unit, unit)
        weights = (cosines * beta - beta.abs()).exp_()
        product = torch.sparse.mm(pattern.matrix(weights.to(x.dtype)), _beside(x, None))
        columns = x.shape[1]
        sums = product[:, columns : columns + 1].float().clamp(min=1e-30)
        out = (product[:, :columns] / sums).to(x.dtype)
        ctx.pattern = pattern
        ctx.save_for_backward(x, beta, out, inverse, unit, cosines, weights, sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Differentiate the quotient, the product, the exponential and the cosines."""
        x, beta, out, inverse, unit, cosines, weights, sums = ctx.saved_tensors
        pattern, dtype = ctx.pattern, x.dtype
        by_product = gradient / sums
        by_sum = -(by_product * out).sum(1, keepdim=True)
        turned = pattern.turned(weights.index_select(0, pattern.order).to(dtype))
        by_x = torch.sparse.mm(turned, by_product.to(dtype))
        slopes = _of_edges(pattern, _beside(by_product.float(), by_sum.float()), _beside(x.float(), None)) * weights
        by_beta = (slopes * cosines).sum().reshape(1)
        slopes *= beta
        back = slopes.index_select(0, pattern.order)
        unit_there = unit.to(dtype)
        if pattern.symmetric:
            by_unit = torch.sparse.mm(pattern.matrix((slopes + back).to(dtype)), unit_there).float()
        else:
            by_unit = torch.sparse.mm(pattern.matrix(slopes.to(dtype)), unit_there).float()
            by_unit += torch.sparse.mm(pattern.turned(back.to(dtype)), unit_there)
        by_unit -= unit * (by_unit * unit).sum(1, keepdim=True)
        return by_x + (by_unit * inverse).to(dtype), by_beta.to(beta.dtype), None


def _of_edges(pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
    """Float32 dot products of the rows at both ends of every edge, by cuSPARSE, into a new matrix."""
    into = pattern.matrix(torch.zeros(pattern.columns.numel(), device=left.device))
    torch.sparse.sampled_addmm(into, left, right.t(), beta=0.0, out=into)
    return into.values()


def _ends(pattern: Pattern, source: Tensor, target: Tensor) -> Tensor:
    """The sum of both ends' scores for every edge."""
    return source.index_select(0, pattern.columns) + target.index_select(0, pattern.rows)


def _beside(x: Tensor, column: Tensor | None) -> Tensor:
    """Append a column to features, by default of ones; 16-bit features are padded with 15 more of zeros."""
    column = x.new_ones((x.shape[0], 1)) if column is None else column
    rest = 15 if x.element_size() == 2 else 0
    return torch.cat([x, column, x.new_zeros((x.shape[0], rest))], 1)


# ---- layers
class Convolution(nn.Module):
    """The layer of GCN and GIN: a sum over neighbours, a product with weights, and a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(inputs, outputs, bias=False), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, matrices: Matrices) -> Tensor:
        """Sum the features or their product with the weights, whichever is narrower."""
        weight = self.lin.weight
        if weight.shape[0] <= weight.shape[1]:
            made: Tensor = Sum.apply(x @ weight.t(), *matrices)
            return made + self.bias
        return torch.addmm(self.bias, Sum.apply(x, *matrices), weight.t())


class Sage(nn.Module):
    """The layer of GraphSAGE: means over neighbours, and a node's own features."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, matrices: Matrices) -> Tensor:
        """Sum the features or their product with the weights, whichever is narrower."""
        weight, own = self.lin_l.weight, torch.addmm(self.lin_l.bias, x, self.lin_r.weight.t())
        if weight.shape[0] <= weight.shape[1]:
            made: Tensor = Sum.apply(x @ weight.t(), *matrices)
            return made + own
        return torch.addmm(own, Sum.apply(x, *matrices), weight.t())


class Gat(nn.Module):
    """The layer of graph attention, with concatenated heads."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(inputs, heads * outputs, bias=False), nn.Parameter(torch.zeros(heads * outputs))
        self.att_src, self.att_dst = (nn.Parameter(torch.zeros(1, heads, outputs)) for _ in range(2))

    def forward(self, x: Tensor, pattern: Pattern) -> Tensor:
        """Compute the features of all heads."""
        h = self.lin(x).view(-1, *self.att_src.shape[1:])
        source, target = ((h * weights).sum(-1) for weights in (self.att_src, self.att_dst))
        made: Tensor = Attend.apply(h, source, target, pattern)
        return made.flatten(1) + self.bias


class Agnn(nn.Module):
    """The layer of attention by cosines, with a factor that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, pattern: Pattern) -> Tensor:
        """Compute features of the shape of `x`."""
        made: Tensor = AttendByCosine.apply(x, self.beta, pattern)
        return made


class Dense(nn.Module):
    """A linear map of every node's features, with a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, _: Any) -> Tensor:
        """Apply the map; the graph does not matter."""
        made: Tensor = self.lin(x)
        return made


def layers(kind: str, widths: list[int], heads: list[int]) -> list[nn.Module]:
    """The layers of a network; `widths` are those of one head."""
    if kind == "agnn":
        return [Dense(*widths[:2]), *(Agnn() for _ in widths[2:-1]), Dense(*widths[-2:])]
    table = {"gcn": Convolution, "gin": Convolution, "sage": Sage}
    made: list[nn.Module] = []
    for i, outputs in enumerate(widths[1:]):
        inputs = widths[i] * (heads[i - 1] if i else 1)
        made.append(Gat(inputs, outputs, heads[i]) if kind == "gat" else table[kind](inputs, outputs))
    return made
