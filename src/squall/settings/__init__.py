"""Loads settings (`loader`) and defines the sections that no other package owns
(`shared_sections`). The tree of all sections is `squall.cluster.settings_tree`.
"""
