"""Tables with a factor that crosses the clients, of which lme4 says in R what tests compare with (lme4 1.1.31)."""

from __future__ import annotations

import numpy as np
import pandas as pd

#: zones of six samples (A to F) on 24 plates in millimetres, a for 15 (Davies and Goldsmith, 1972; lme4's Penicillin)
_ZONES = """
    miliig miliig kgkjjf likiif khlhif jhkihe jfighe lhljjg jgjhhf jgjihe liljjg khljjf ljljkh liliif likjjh
    khkiif kgjiif khjiie jgigge liljjg kgjhhd khkhhf jgjhje jgjhgd
"""
#: lme4's VerbAgg, persons 1 to 100: whether each answered yes or perhaps to the 24 items in turn, bits of a number
_ANSWERS = """
    00cb27 000020 f60644 fe0fe0 b24d24 d38926 fe8fc0 000924 1ac92a feffc7 ff8fc0 febd96 b24d84 ffcff2 95cda6
    b64e26 944fbf b68b00 000000 fe4b80 f84900 ffffb6 fffff6 bbc800 00ed04 124004 de0004 ffbec9 f45d26 b5cfb7
    fc7fc7 fbdfaf 110fb5 f40f00 fc0fc0 ffeffe 048000 041e44 1c01c2 0a0000 e3d209 079615 800000 204926 5a0980
    ff7f86 fe7f37 204000 045e16 bc0fa4 000907 367cd7 f7ef3e fc09a4 048b34 ffdfff b46fe2 b6fddf 300b80 249200
    ffdfc8 ffffd6 feb200 bcf4cf b65920 202926 a69b24 ffffff 9a5586 b79014 100248 9477c3 200000 fe0490 300002
    901001 145100 800400 9650c0 904d36 c06400 fb6fb6 9149b2 b24804 d87ec7 104000 ffee36 fa7d07 924926 904000
    824000 000008 d36d86 924000 fc6fe6 da6da6 180000 f07f07 184200 904004
"""
#: their trait anger
_ANGER = """
    20 11 17 21 17 21 39 21 24 16 15 18 36 22 16 18 23 16 21 25 22 15 26 13 33 17 17 22 21 17 19 18 33 19 25
    17 12 14 25 22 20 25 12 16 23 19 22 15 25 35 24 24 13 26 25 20 27 19 15 18 26 26 23 20 18 30 24 22 19 13
    17 29 12 19 23 11 18 22 22 19 19 21 25 19 26 18 20 17 17 16 22 16 19 20 22 18 26 23 15 18
"""


def penicillin() -> pd.DataFrame:
    """24 plates with one zone of each of six samples."""
    zones = [ord(zone) - ord("a") + 15 for plate in _ZONES.split() for zone in plate]
    plates = np.repeat(list("abcdefghijklmnopqrstuvwx"), 6)
    return pd.DataFrame({"diameter": zones, "plate": plates, "sample": list("ABCDEF") * 24})


def aggression() -> pd.DataFrame:
    """100 persons and 24 items."""
    answers = [int(bit) for person in _ANSWERS.split() for bit in f"{int(person, 16):024b}"]
    person, item = np.divmod(np.arange(len(answers)), 24)
    anger = np.array(_ANGER.split(), dtype=int)
    names = [f"p{k:03d}" for k in person], [f"i{k:02d}" for k in item]
    return pd.DataFrame({"yes": answers, "anger": anger[person], "person": names[0], "item": names[1]})


def slopes() -> pd.DataFrame:
    """12 sites and 9 items, each with an intercept and a slope; sites lack some of the items."""
    rng = np.random.default_rng(5)
    site, item = np.divmod(np.arange(12 * 9 * 3) // 3, 9)
    x = rng.normal(size=len(site)).round(3)
    b, w = rng.normal(size=(12, 2)) * [1.0, 0.5], rng.normal(size=(9, 2)) @ np.array([[0.7, -0.3], [0.0, 0.4]])
    eta = 1 + 0.5 * x + b[site, 0] + b[site, 1] * x + w[item, 0] + w[item, 1] * x
    y = (eta + rng.normal(size=len(x))).round(4)
    names = [f"s{k:02d}" for k in site], [f"i{k}" for k in item]
    df = pd.DataFrame({"y": y, "x": x, "site": names[0], "item": names[1]})
    return df[rng.random(len(df)) < 0.8].reset_index(drop=True)
