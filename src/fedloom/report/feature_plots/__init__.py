"""Looking into the models of finished runs: t-SNE, spectra, similarities of features, and Grad-CAM.

A run is rebuilt from its config and its checkpoint; nothing in its folder is touched. Each client's
personal model is the one that its method would use in the next round, before it trains.
"""

from .views import look

__all__ = ["look"]
