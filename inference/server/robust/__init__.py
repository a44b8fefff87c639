"""Rules for messages of which some may lie, and a watch on clients that stand out.

A robust rule replaces the sum (:mod:`.totals`): what it gives has the sum's form, and aggregation rules go on
unchanged. It needs single messages, or sums over several groups of clients. The watch (:mod:`.watch`) changes nothing:
it measures each client's message beside the others', and names those that no honest client is expected to send.
"""
