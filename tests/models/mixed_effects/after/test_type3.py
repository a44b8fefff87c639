"""Type 3 tests beside generalised least squares with sum-to-zero contrasts by patsy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from patsy import dmatrix
from support.after_fit import arms, dense

from hierfl import UserError, mixed_model

DF = arms()
SUM = "C(arm, Sum) * C(sex, Sum) + x + C(arm, Sum):x"
#: formulae's names of terms, and patsy's
TERMS = {
    "arm": "C(arm, Sum)", "sex": "C(sex, Sum)", "arm:sex": "C(arm, Sum):C(sex, Sum)", "x": "x",
    "arm:x": "C(arm, Sum):x",
}  # fmt: skip


def test_each_term_is_tested_as_with_sum_to_zero_contrasts_whatever_the_reference() -> None:
    fit = mixed_model(DF, "y ~ arm * sex + x + arm:x + (1 | site)", draws=0)
    type3 = fit.anova().set_index("term")
    explicit, slices = dense(fit, DF, SUM), dmatrix(SUM, DF).design_info.term_name_slices
    eye = np.eye(explicit.x.shape[1])
    assert sorted(type3.index) == sorted(TERMS)
    for name, row in type3.iterrows():
        contrast = eye[slices[TERMS[name]]]
        assert row.statistic == pytest.approx(explicit.f(contrast), rel=1e-6), name
        assert row.df == len(contrast)
    # lmerTest 3.1-3, anova(lmer(y ~ arm * sex + x + arm:x + (1 | site)), type = 3), whatever the coding of arm
    lmertest = {"arm": 282.50369, "sex": 280.97626, "x": 281.01660, "arm:sex": 281.36041, "arm:x": 281.93982}
    summed = mixed_model(DF, "y ~ C(arm, Sum) * sex + x + C(arm, Sum):x + (1 | site)", draws=0).anova()
    summed = summed.assign(term=summed.term.str.replace("C(arm, Sum)", "arm")).set_index("term")
    for anova in (type3, summed):
        np.testing.assert_allclose(anova.df_residual[[*lmertest]], [*lmertest.values()], rtol=1e-6)
    other = DF.assign(arm=pd.Categorical(DF.arm, ["c", "a", "b"]), sex=pd.Categorical(DF.sex, ["m", "f"]))
    again = mixed_model(other, "y ~ sex * arm + x * arm + (1 | site)", draws=0).anova().set_index("term")
    again = again.rename(index={"sex:arm": "arm:sex", "x:arm": "arm:x"}).loc[type3.index]
    # Satterthwaite's numbers of several contrasts depend on a basis, a little.
    np.testing.assert_allclose(again.statistic, type3.statistic, rtol=1e-5)
    np.testing.assert_allclose(again.df_residual, type3.df_residual, rtol=0.01)
    # A treatment contrast's t, of the reference level of the other category, is another test.
    assert fit.test("sex[m]").statistic.iloc[0] != pytest.approx(type3.statistic["sex"], rel=0.01)


def test_smooth_terms_and_numbers_that_are_categories_are_terms() -> None:
    df = DF.assign(year=2000 + DF.x.round().clip(2, 4).astype(int))
    fit = mixed_model(df, "y ~ C(year) + poly(x, 2) * sex + (1 | site)", draws=0)
    anova = fit.anova().set_index("term")
    assert anova.df.to_dict() == {"C(year)": 2, "poly(x, 2)": 2, "sex": 1, "poly(x, 2):sex": 2}
    both = [f"poly(x, 2)[{k}]" for k in (1, 2)]
    names = [name for name in fit.params.index if name.startswith("poly") and ":" not in name]
    assert len(names) == len(both)
    text = ", ".join(f"{name} + {name}:sex[m] / 2" for name in names)
    assert fit.test(text).statistic.iloc[0] == pytest.approx(anova.statistic["poly(x, 2)"], rel=1e-6)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ 0 + arm + (1 | site)", "need an intercept"),
        ("y ~ arm + arm:x + (1 | site)", "'arm:x' has other columns"),
        ("y ~ arm:sex + (1 | site)", "'arm:sex' has other columns"),
        ("y ~ 1 + (1 | site)", "has none beside its intercept"),
        ("y ~ arm * sex + (1 | site)", "was dropped"),
    ],
)
def test_terms_that_are_no_components_are_refused(formula: str, words: str) -> None:
    df = DF[~((DF.arm == "c") & (DF.sex == "m"))] if "dropped" in words else DF
    fit = mixed_model(df, formula, draws=0)
    with pytest.raises(UserError, match=words):
        fit.anova()


def test_other_types_are_refused() -> None:
    fit = mixed_model(DF, "y ~ x + (1 | site)", draws=0)
    with pytest.raises(UserError, match="type 3, not 2"):
        fit.anova(type=2)  # type: ignore[arg-type]
