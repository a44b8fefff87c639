"""Mixed-effects models of tables, in packages of which each is based on those before it.

``model`` is the equations as text, ``responses`` what y may be, ``likelihood`` what clients compute (``gaussian`` in
closed form, others by ``quadrature``), ``search`` what the server makes of their sums, ``report`` what is printed.
``method`` is all of it as a method, ``mixed_model`` one call for it.
"""
