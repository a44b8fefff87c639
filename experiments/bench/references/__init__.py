"""One round of pFedVEM written three other ways, of FedRep two, and one of pFedV, for `hierfl bench` to compare with.

All do the same work at every client. pFedVEM: rho by its closed form, R full-batch steps on the head, E epochs of
minibatch steps on a copy of the base; FedRep: minibatch steps on the head, then on a copy of the base; pFedV: E epochs
of minibatch steps on copies of encoder and base and on the client's last layer. None knows Pyro, and their noise is
torch's own. Inputs are standardised beforehand, which favours them. Messages and server are left out: they cost next
to nothing.
"""
