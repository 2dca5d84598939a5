"""How far Outrider's decisions are from the best fixed setting, measured on a virtual clock:
python -m benchmarks.regret.
"""
