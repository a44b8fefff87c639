"""Data sets in folders: pictures by client and label, an .npz for each client, LEAF's json."""
