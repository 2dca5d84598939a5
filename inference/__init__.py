"""The core of Outrider: models, sessions, trees of candidates, and the draft that proposes them."""
