"""pFedGP: features of all under a Gaussian process of one's own. Achituve et al., NeurIPS 2021, with all data.

    theta           ~ flat                                        rho -> 0 on the base: z = h_theta(x)
    f_j             ~ GP(0, k),  k(z, z') = s exp(-|z - z'|^2 / (2 l^2))      instead of f = w_j^T z; z of length 1
    y_ij | f_j      ~ N(f_j(z_ij), noise^2)                       a regression
    y_ij | f_j^t    ~ prod_t sigma(+-f_j^t(z_ij))                 classes: decisions t down a tree, a process each

What it needs beyond the one model is the Gaussian process: with k(z, z') = s (1 + z^T z') it is the model, its prior
fixed at w_j ~ N(0, s I), its head integrated out, and any other k has a head of infinitely many features. So a
likelihood is of all of a client's data at once, and nothing of the head is kept: a prediction is conditioned on the
training data,

    p(y | x, D_j) = int p(y | f) p(f(z) | D_j) df,

exactly for a regression; for classes averaged over Gibbs draws of the Polya-Gamma omega_i given D_j, given which f is
Gaussian. The decisions are those on the way from the root of the client's tree of classes to y_ij. The tree is 2-means
of its classes' mean features, again and again. What a client has never seen has a probability all the same, that of a
Dirichlet(alpha) prior of its class shares: of C classes, K seen among n_j examples,

    c not seen:   p(y = c | x) = alpha / (n_j + alpha C)
    c seen:       p(y = c | x) = (n_j + alpha K) / (n_j + alpha C) p(path to c | x, D_j)

A round: each client that takes part makes its tree, and takes gradient steps of a copy theta_j on the mean of
log p(y_i | x_i, D') over a random half of its examples, D' being the others (or, for a regression, on the marginal
likelihood of all). It sends theta_j; the server takes the plain mean. Nothing else leaves the client.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.distributions import Normal
from torch import Tensor
from torch.nn.functional import pad

from hierfl.data.batch import Batch, Given
from hierfl.devices import send
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.class_tree import ClassTree
from hierfl.inference.local.gradient_transforms import Clipped
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.likelihoods import Softmax
from hierfl.plurals import counted
from hierfl.ppl.class_tree import any_tree
from hierfl.ppl.gaussian_process import (
    NUGGET,
    Kernel,
    conditional,
    log_logistic,
    logistic_precisions,
    one_after_another,
    similar_rows,
)
from hierfl.ppl.plates import clients, data, param, sample

from .._common_settings import client_momentum, server_step

#: most numbers in memory at a time: draws x examples x examples
MAX_NUMBERS_AT_ONCE = 20_000_000


class PFedGP(Method):
    """A base for all; instead of a head, a Gaussian process on the client's own data."""

    about = About(
        name="pfedgp",
        what="own Gaussian process on shared features",
        paper="Achituve et al., NeurIPS 2021",
        family="fixed prior, head integrated out",
        stays="tree of classes",
        sent="base",
        message_size=0.99,
        order=349,
    )
    conditions = True

    @dataclass(frozen=True)
    class Settings:
        """The paper's code, on CIFAR: one step on all data a round, clipped at 50, fixed kernel."""

        steps: int = setting(1, "gradient steps of a round, each on all of a client's data", at_least=0)
        lr: float = setting(5e-2, "step size of the clients", above=0)
        momentum: float = client_momentum()
        weight_decay: float = setting(1e-3, "times the weights, added to the gradient", at_least=0)
        clip: float = setting(50.0, "the length at which a client's gradient is cut", above=0)
        objective: Literal["predictive", "marginal"] = setting(
            "predictive", "of some examples given the others | marginal likelihood of all (a regression alone)"
        )
        predicts: float = setting(
            0.5, "share of a client's examples that a step predicts from the others", above=0, below=1,
            unless={"objective": ("marginal",)},
        )  # fmt: skip
        kernel: Literal["rbf", "linear"] = setting("rbf", "covariance of f: rbf | linear, a head with a Normal prior")
        scale: float = setting(8.0, "s, variance of f in front of the kernel", above=0, at_most=1e12)
        length: float = setting(
            1.0, "l, distance of features over which f changes", above=0, unless={"kernel": ("linear",)}, at_most=1e12
        )
        normalise: bool = setting(True, "features have length 1")
        gibbs: int = setting(5, "Gibbs steps of each draw", at_least=0, at_most=1_000_000)
        draws: int = setting(
            20, "Gibbs draws that a step or a prediction is averaged over", at_least=1, at_most=100_000
        )
        unseen: float = setting(1.0, "alpha, how many examples of each class a client is taken to have had", above=0)
        most: int = setting(2000, "examples of a client: memory grows with the square, time with the cube", at_least=1)
        server_lr: float = server_step()

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if network.base.norm_names or network.base.drops:
            raise UserError(
                f"pfedgp looks at all of a client's data at once, without batch norm and dropout, but network "
                f"{network.spec} has one of them"
            )
        s = self.settings
        if network.noise is None and s.objective == "marginal":
            raise UserError("objective=marginal is a regression's; labels have objective=predictive")
        without_effect = [k for k in ("gibbs", "draws", "unseen") if getattr(s, k) != getattr(type(s)(), k)]
        if network.noise is not None and without_effect:
            raise UserError(
                f"{without_effect[0]}={getattr(s, without_effect[0])} changes nothing in a regression, which is exact"
            )
        self.classes = 0 if network.noise is not None else network.head.outputs
        self.kernel = Kernel(s.kernel, s.scale, s.length, s.normalise)

    def shared(self, start: InitialWeights) -> State:
        return start.base

    def personal(self, start: InitialWeights) -> State:
        if not self.classes:
            return {}
        return {
            "tree": any_tree(self.classes).to(start.head),
            "class_counts": start.head.new_ones(self.classes),
        }

    def check_sizes(self, sizes: Sequence[int]) -> None:
        if max(sizes, default=0) > self.settings.most:
            raise UserError(
                f"a client has {counted(max(sizes), 'example')}, and pfedgp takes {self.settings.most} at most "
                "(most=N allows N): memory grows with their square, time with their cube"
            )

    def model(self, batch: Batch) -> None:
        num_given = 0 if batch.given is None else batch.given.examples.width
        # In training those given are some of a client's, and the others are here.
        self.check_sizes([num_given + (batch.width if batch.given is None or batch.scale is not None else 0)])
        with clients(batch):
            # In double precision: variances are small differences.
            given_features = None if batch.given is None else self.network.base(batch.given.examples.x).double()
            z = self.network.base(batch.x).double()
            with data(batch):
                likelihood = self.labels if self.classes else self.responses
                sample("y", likelihood(batch, z, given_features), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Nothing is kept of f."""

    def responses(self, batch: Batch, z: Tensor, given_features: Tensor | None) -> Normal:
        """p(y_i | x_i, D'), or given nothing p(y_i | y_1, ..., y_{i-1}), whose product is the marginal likelihood.

        Args:
            batch: the examples, and D' beside them.
            z: their features, (S, n, D).
            given_features: those of D', (S, m, D).
        """
        assert self.network.noise is not None
        noise, k = self.network.noise, self.kernel
        if batch.given is None or given_features is None:
            predictive = one_after_another(k.matrix(z, batch.mask), batch.y.to(z), noise)
            return Normal(predictive.loc.to(batch.n), predictive.scale.to(batch.n))
        examples = batch.given.examples
        omega = given_features.new_full(examples.y.shape, noise**-2)
        omega = omega if examples.mask is None else omega * examples.mask
        mean, variance = conditional(
            k.matrix(given_features, examples.mask), k(given_features, z), k.variance(z), omega * examples.y, omega
        )
        return Normal(mean.to(batch.n), (variance + noise**2).sqrt().to(batch.n))

    def labels(self, batch: Batch, z: Tensor, given_features: Tensor | None) -> Softmax:
        """p(y_i | x_i, D'): down the tree, unseen classes beside it. Arguments are those of :meth:`responses`."""
        tree = param("tree").squeeze(1).round().to(z)  # (S, C, C - 1)
        if batch.given is None or given_features is None:  # where nothing is known each side of a node is as likely
            paths = -math.log(2) * tree.abs().sum(-1)[:, None].expand(*z.shape[:2], -1)
        else:
            paths = self.paths(batch, batch.given, z, given_features, tree)
        counts, alpha = param("class_counts").to(z), self.settings.unseen  # (S, 1, C)
        present, n = counts > 0, counts.sum(-1, keepdim=True)
        among = (n + alpha * present.sum(-1, keepdim=True)).log()
        logits = torch.where(present, paths + among, math.log(alpha)) - (n + alpha * self.classes).log()
        # Where all clients have one class the gradient is 0, not missing.
        return Softmax((logits + 0 * z.sum(-1, keepdim=True)).to(batch.n))

    def paths(self, batch: Batch, given: Given, z: Tensor, given_features: Tensor, tree: Tensor) -> Tensor:
        """log p(path to each class | x_i, D'), (S, n, C); rows of about the same size are taken together."""
        given_sizes, new = ([max(1, int(n)) for n in examples.present()] for examples in (given.examples, batch))
        parts, order = [], []
        for rows in similar_rows(given_sizes, z.device):
            m, n = (max(sizes[row] for row in rows) for sizes in (given_sizes, new))
            rows_at_once = max(1, MAX_NUMBERS_AT_ONCE // (self.settings.draws * m * max(m, n)))
            for some in (rows[first : first + rows_at_once] for first in range(0, len(rows), rows_at_once)):
                index = send(some, z.device, torch.long)
                log_paths = self.some_paths(given, z[index, :n], given_features[index, :m], tree[index], index)
                parts.append(pad(log_paths, (0, 0, 0, z.shape[1] - n)))
            order += rows
        return torch.cat(parts)[send(order, z.device, torch.long).argsort()]

    def some_paths(self, given: Given, z: Tensor, given_features: Tensor, tree: Tensor, rows: Tensor) -> Tensor:
        """:meth:`paths` of these rows, to which z, seen and tree belong; 0 for classes that are not in the tree."""
        m, examples, s = given_features.shape[1], given.examples, self.settings
        mask = None if examples.mask is None else examples.mask[rows, :m]
        k, cross, prior = (
            self.kernel.matrix(given_features, mask, NUGGET),
            self.kernel(given_features, z),
            self.kernel.variance(z),
        )
        signs = tree.gather(1, examples.y[rows, :m, None].expand(-1, -1, tree.shape[-1]))  # (S, m, C - 1)
        signs = signs if mask is None else signs * mask[..., None]
        noise = Given(examples, given.keys[rows], given.stream).noise(s.draws, z.dtype)
        total = z.new_zeros(*z.shape[:2], self.classes)
        # The device is waited for once: matrices of all examples at every node would cost far more.
        known_at, leaves_below = torch.stack([(signs != 0).sum(1).amax(0), (tree != 0).sum((0, 1))]).tolist()
        for node in (node for node, leaves in enumerate(leaves_below) if leaves):
            # examples that are below the node come first, and the others are left away: they say nothing
            first = (signs[..., node] == 0).to(torch.uint8).argsort(stable=True)
            first = first[:, : max(1, known_at[node])]
            sign, row = signs[..., node].gather(1, first), torch.arange(len(z), device=z.device)[:, None]
            k_here = k[row[..., None], first[:, :, None], first[:, None, :]]
            with torch.no_grad():
                omega = logistic_precisions(k_here, sign, noise, f"node {node}", s.gibbs)
            up, down = log_logistic(*conditional(k_here, cross[row, first], prior, sign / 2, omega))
            side = tree[:, None, :, node]
            total = total + (side > 0) * up[..., None] + (side < 0) * down[..., None]
        return total

    def local(self) -> list[LocalStep]:
        s = self.settings
        predicts = s.predicts if s.objective == "predictive" else None
        steps = sgd(s.lr, s.momentum, s.weight_decay)
        train = SVI(["base"], s.steps, steps, per="example", transform=Clipped(s.clip), predicts=predicts)
        return [*self.arranged(), train]

    def arranged(self) -> list[LocalStep]:
        """A client's own tree of the classes that it has."""
        return [ClassCounts("class_counts"), ClassTree("tree")] if self.classes else []

    def schedule(self) -> Schedule:
        # a tree is of the features as they are: made for a round, and again where predictions are evaluated
        return Schedule(absent="freeze", commit="if-used", final_steps=self.arranged(), final_when="evaluation")

    def exchange(self) -> dict[str, AggregationRule]:
        return {"base": UniformMean(server_lr=self.settings.server_lr)}

    @property
    def has_global_model(self) -> bool:
        return False
